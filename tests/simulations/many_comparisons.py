"""Many simulated comparisons at once: through the same looks with the same functions as real ones.

`CommitComparison` takes milliseconds a comparison; here all are arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.compare.judging import significant_among, verdicts, weigh_costs
from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.lab.reach import own_differences
from asv_bench.stats.paired import POOL_SIZE, Floats


@dataclass(frozen=True, slots=True)
class Drawn:
    """What comparisons will see, as logarithms of costs."""

    # [runs, benchmarks, pairs], in the order in which they are measured.
    base: Floats
    head: Floats
    # [runs, benchmarks, size] differences within a commit, known before; size 0 for none.
    pools: Floats


@dataclass(frozen=True, slots=True)
class ManyAnswers:
    """What they come to, [runs, benchmarks]; `verdict` holds values of `Verdict`."""

    verdict: npt.NDArray[np.str_]
    pairs: npt.NDArray[np.int64]
    effect: Floats
    low: Floats
    high: Floats


def compare_many(drawn: Drawn, plan: ComparisonPlan) -> ManyAnswers:
    """The answers that `CommitComparison` would give, one comparison after the other."""
    shape = drawn.base.shape[:2]
    answers = ManyAnswers(
        np.full(shape, Verdict.INCONCLUSIVE.value, "<U12"),
        np.zeros(shape, np.int64),
        *(np.full(shape, np.nan) for _ in range(3)),
    )
    is_open = np.ones(shape, np.bool_)
    for number, look in enumerate(plan.looks):
        if look.test is Criterion.POOLED and drawn.pools.shape[-1] < POOL_SIZE:
            continue
        if not is_open.any():
            break
        # Judge what is open, and close what has a clear answer.
        base, head = (side[is_open, : look.pairs] for side in (drawn.base, drawn.head))
        evidence = weigh_costs(
            base, head, plan, look.test, drawn.pools[is_open], own_differences(base, head)
        )
        p_values = np.full(shape, np.nan)
        p_values[is_open] = evidence.p
        before = np.where(is_open, "", answers.verdict)
        significant = significant_among(p_values[..., None], before[..., None], number, plan)
        significant = significant[..., 0][is_open]
        found = verdicts(evidence, significant, number, plan)
        answers.verdict[is_open] = found
        answers.pairs[is_open] = look.pairs
        answers.effect[is_open] = evidence.effect
        answers.low[is_open], answers.high[is_open] = evidence.interval
        is_open[is_open] = found == Verdict.INCONCLUSIVE
    return answers
