"""The rule of `compare` on many comparisons at once, all of whose pairs are known beforehand.

`CommitComparison` asks for pairs as it needs them, which costs milliseconds a comparison. This
goes through the same looks with the same functions, on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.compare.judging import significant_among, verdicts, weigh_costs
from asv_bench.compare.plan import ComparisonPlan, Criterion, Look
from asv_bench.compare.verdict import Verdict
from asv_bench.stats.few_pairs import POOL_SIZE, Floats


@dataclass(frozen=True, slots=True)
class Drawn:
    """What comparisons will see, as logarithms of costs.

    Attributes
    ----------
    base, head
        [runs, benchmarks, pairs], in the order in which they are measured.
    pools
        [runs, benchmarks, size] differences within a commit, known before; size 0 for none.
    """

    base: Floats
    head: Floats
    pools: Floats


@dataclass(frozen=True, slots=True)
class Answers:
    """What they come to, [runs, benchmarks]; `verdict` holds values of `Verdict`."""

    verdict: npt.NDArray[np.str_]
    pairs: npt.NDArray[np.int64]
    effect: Floats
    low: Floats
    high: Floats

    @classmethod
    def of_none(cls, runs: int, benchmarks: int) -> Answers:
        """Before the first look."""
        shape = runs, benchmarks
        return cls(
            verdict=np.full(shape, Verdict.INCONCLUSIVE.value, "<U12"),
            pairs=np.zeros(shape, np.int64),
            effect=np.full(shape, np.nan),
            low=np.full(shape, np.nan),
            high=np.full(shape, np.nan),
        )


def compare_many(drawn: Drawn, plan: ComparisonPlan) -> Answers:
    """The answers that `CommitComparison` would give, one comparison after the other."""
    answers = Answers.of_none(*drawn.base.shape[:2])
    is_open = np.ones(answers.verdict.shape, np.bool_)
    for number, look in enumerate(plan.looks):
        if look.test is Criterion.POOLED and drawn.pools.shape[-1] < POOL_SIZE:
            continue
        if not is_open.any():
            break
        _look(drawn, plan, number, look, answers, is_open)
    return answers


def own_differences(base: Floats, head: Floats) -> Floats:
    """What `judging.within_commit` finds where pairs alternate on one device, [..., pairs // 2].

    Pairs come in the order base first, head first, head first, base first: each even pair ends
    with the commit that the next begins with.
    """
    pairs = base.shape[-1]
    earlier = np.arange(0, pairs - 1, 2)
    is_heads = earlier % 4 == 0
    first = np.where(is_heads, head[..., earlier], base[..., earlier])
    second = np.where(is_heads, head[..., earlier + 1], base[..., earlier + 1])
    differences: Floats = second - first
    return differences


def _look(
    drawn: Drawn,
    plan: ComparisonPlan,
    number: int,
    look: Look,
    answers: Answers,
    is_open: npt.NDArray[np.bool_],
) -> None:
    """Judge what is open, and close what has a clear answer."""
    base, head = (side[is_open, : look.pairs] for side in (drawn.base, drawn.head))
    evidence = weigh_costs(
        base, head, plan, look.test, drawn.pools[is_open], own_differences(base, head)
    )
    p_values = np.full(is_open.shape, np.nan)
    p_values[is_open] = evidence.p
    differ = np.isin(answers.verdict, (Verdict.SLOWER, Verdict.FASTER))
    significant = significant_among(p_values, number, (~differ).sum(axis=-1), plan)[is_open]
    found = verdicts(evidence, significant, number, plan)
    answers.verdict[is_open] = found
    answers.pairs[is_open] = look.pairs
    answers.effect[is_open] = evidence.effect
    answers.low[is_open], answers.high[is_open] = evidence.interval
    is_open[is_open] = found == Verdict.INCONCLUSIVE
