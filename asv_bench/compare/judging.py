"""The verdicts at one look, from the pairs that there are by then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType

import numpy as np

from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.process.samples import Pair
from asv_bench.stats.few_pairs import (
    POOL_SIZE,
    Floats,
    fits_pool,
    pooled_p,
    rank_sum_p,
    separation_p,
)
from asv_bench.stats.paired import hodges_lehmann, location_p, shift_interval
from asv_bench.stats.sequential import holm


@dataclass(frozen=True, slots=True)
class Evidence:
    """What some pairs say.

    Attributes
    ----------
    pairs
        How many they are.
    test
        What gave the p-values.
    effect
        As a fraction: 0.02 is 2 % slower.
    interval, confidence
        Of the effect.
    slower_p, faster_p
        One-sided, of no effect.
    equivalence_p
        The larger of the p-values of two one-sided tests, of an effect of the margin in either
        direction (Schuirmann 1987).
    """

    pairs: int
    test: Criterion
    effect: float
    interval: tuple[float, float]
    confidence: float
    slower_p: float
    faster_p: float
    equivalence_p: float

    @property
    def p(self) -> float:
        """The smaller of the one-sided p-values."""
        return min(self.slower_p, self.faster_p)


def weigh(
    pairs: Sequence[Pair],
    plan: ComparisonPlan,
    test: Criterion = Criterion.LOCATION,
    pool: Sequence[float] = (),
) -> Evidence:
    """Effect, interval and p-values of at least one pair.

    Parameters
    ----------
    pairs
        Those that may be judged by.
    plan
        Says what matters.
    test
        What gives the p-values.
    pool
        Differences within one commit that this machine showed before (`within_commit`).
    """
    base, head = np.array([pair.costs for pair in pairs]).T
    margin = math.log1p(plan.margin)
    known = np.asarray(pool, np.float64)
    if test is Criterion.POOLED and not _serves(known, within_commit(pairs)):
        known = np.empty(0)

    def is_slower(base: Floats, head: Floats) -> float:
        return _p_value(test, base, head, known)

    low, high, confidence = shift_interval(head - base, plan.confidence)
    return Evidence(
        pairs=len(pairs),
        test=test,
        effect=math.expm1(hodges_lehmann(head - base)),
        interval=(math.expm1(low), math.expm1(high)),
        confidence=confidence,
        slower_p=is_slower(base, head),
        faster_p=is_slower(head, base),
        equivalence_p=max(is_slower(base - margin, head), is_slower(head - margin, base)),
    )


def within_commit(pairs: Sequence[Pair]) -> list[float]:
    """Logarithms of ratios between processes of one commit that ran one after the other.

    Where one pair ends with the commit that the next begins with, on the same device.
    """
    ratios: list[float] = []
    by_time = sorted(pairs, key=attrgetter("base.device", "base.started_at"))
    for earlier, later in pairwise(by_time):
        if earlier.base.device == later.base.device and earlier.head_first != later.head_first:
            side = attrgetter("base" if earlier.head_first else "head")
            ratios.append(math.log(side(later).value / side(earlier).value))
    return ratios


def judge(
    evidence: Mapping[str, Evidence],
    number: int,
    hypotheses: int,
    plan: ComparisonPlan,
    margins: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Verdict]:
    """The verdict on each benchmark at look `number`.

    Parameters
    ----------
    evidence
        Of the benchmarks that are still open.
    number
        Index into the plan's looks.
    hypotheses
        Benchmarks of the comparison that have not been called slower or faster, those called
        equivalent included.
    margins
        Of the benchmarks whose margin is not the plan's, as fractions.
    """
    significant = holm(
        {name: entry.p for name, entry in evidence.items()},
        lambda share: plan.difference_level(number, share),
        hypotheses,
    )
    return {
        name: _verdict(
            entry, name in significant, plan.equivalence_level(number), plan.for_one(name, margins)
        )
        for name, entry in evidence.items()
    }


def _verdict(
    entry: Evidence, is_significant: bool, equivalence_level: float, plan: ComparisonPlan
) -> Verdict:
    # As log-ratios, so that faster and slower are held to the same: 1 / 1.01 is 1 % faster.
    shift, least = math.log1p(entry.effect), math.log1p(plan.minimum_effect)
    if is_significant and shift >= least and entry.slower_p < entry.faster_p:
        return Verdict.SLOWER
    if is_significant and shift <= -least and entry.faster_p < entry.slower_p:
        return Verdict.FASTER
    low, high = map(math.log1p, entry.interval)
    is_within = -math.log1p(plan.margin) <= low and high <= math.log1p(plan.margin)
    if is_within and entry.equivalence_p <= equivalence_level:
        return Verdict.EQUIVALENT
    return Verdict.INCONCLUSIVE


def _p_value(test: Criterion, base: Floats, head: Floats, pool: Floats) -> float:
    """One-sided: small where the head is slower."""
    match test:
        case Criterion.POOLED:
            return float(pooled_p(base, head, pool)) if pool.size else 1.0
        case Criterion.SEPARATION:
            return float(separation_p(base, head))
        case Criterion.RANK_SUM:
            return float(rank_sum_p(base, head))
        case Criterion.LOCATION:
            return location_p(head - base, "greater")


def _serves(pool: Floats, own: Sequence[float]) -> bool:
    return pool.size >= POOL_SIZE and bool(own) and bool(fits_pool(np.asarray(own), pool))
