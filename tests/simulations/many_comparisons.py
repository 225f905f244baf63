"""Many simulated comparisons at once: through the same looks with the same functions as real ones.

`CommitComparison` takes milliseconds a comparison; here all are arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.compare.judging import Builds, over_builds, significant_among, verdicts, weigh_costs
from asv_bench.compare.noise_pools import own_differences
from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.stats.paired import POOL_SIZE, Bools, Floats


@dataclass(frozen=True, slots=True)
class Drawn:
    """What comparisons will see, as logarithms of costs."""

    # [runs, benchmarks, pairs], in the order in which they are measured.
    base: Floats
    head: Floats
    # [runs, benchmarks, size] differences within a commit, known before; size 0 for none.
    pools: Floats
    sessions: int = 8  # that the pools come from
    digits: float = 1e-15  # the step of the last digit of the figures, as a fraction of them
    # [benchmarks, pairs], whether the head's process ran before the base's; None: as ABBA.
    head_first: Bools | None = None
    # Where benchmarks are the contrasts of one metric: the turns in which they are tested.
    turns: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class ManyAnswers:
    """What they come to, [runs, benchmarks]; `verdict` holds values of `Verdict`."""

    verdict: npt.NDArray[np.str_]
    pairs: npt.NDArray[np.int64]
    effect: Floats
    low: Floats
    high: Floats


def compare_many(drawn: Drawn, plan: ComparisonPlan, builds: Builds | None = None) -> ManyAnswers:
    """The answers that `CommitComparison` would give, one comparison after the other.

    `builds` has those that pairs measure, [pairs]; None: there is one alone.
    """
    shape = drawn.base.shape[:2]
    answers = ManyAnswers(
        np.full(shape, Verdict.INCONCLUSIVE.value, "<U12"),
        np.zeros(shape, np.int64),
        *(np.full(shape, np.nan) for _ in range(3)),
    )
    is_open = np.ones(shape, np.bool_)
    head_first = drawn.head_first
    if head_first is None:
        head_first = np.tile(np.isin(np.arange(drawn.base.shape[-1]) % 4, (1, 2)), (shape[1], 1))
    by_metric = shape[0], -1, len(drawn.turns)
    for number, look in enumerate(plan.looks):
        is_known = drawn.pools.shape[-1] == POOL_SIZE and drawn.sessions >= look.sessions
        if look.test is Criterion.POOLED and not is_known:
            continue
        if not is_open.any():
            break
        # Judge what is open, and close what has a clear answer.
        evidence, p_values = {}, np.full(shape, np.nan)
        for number_of, first in enumerate(head_first[:, : look.pairs]):
            rows = is_open[:, number_of]
            base, head = (side[rows, number_of, : look.pairs] for side in (drawn.base, drawn.head))
            evidence[number_of] = weigh_costs(
                base,
                head,
                plan,
                look.test,
                drawn.pools[rows, number_of],
                own_differences(base, head, first),
                drawn.digits,
            )
            if builds is not None:
                of_pairs = builds[: look.pairs]
                evidence[number_of] = over_builds(evidence[number_of], base, head, of_pairs, plan)
            p_values[rows, number_of] = evidence[number_of].p
        before = np.where(is_open, "", answers.verdict).reshape(by_metric)
        significant = significant_among(
            p_values.reshape(by_metric), before, number, plan, drawn.turns
        ).reshape(shape)
        for number_of, entry in evidence.items():
            rows = is_open[:, number_of].copy()
            found = verdicts(entry, significant[rows, number_of], number, plan)
            answers.verdict[rows, number_of] = found
            answers.pairs[rows, number_of] = look.pairs
            answers.effect[rows, number_of] = entry.effect
            answers.low[rows, number_of], answers.high[rows, number_of] = entry.interval
            is_open[rows, number_of] = found == Verdict.INCONCLUSIVE
    return answers
