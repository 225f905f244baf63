"""The verdicts at one look, from the pairs that there are by then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.stats.paired import (
    equivalence_p,
    hodges_lehmann,
    hodges_lehmann_interval,
    location_p,
    wilcoxon_p,
)
from asv_bench.stats.sequential import holm


@dataclass(frozen=True, slots=True)
class Evidence:
    """What some pairs say: fractions for effects (0.02 is 2 % slower), and p-values."""

    pairs: int
    effect: float
    interval: tuple[float, float]
    p: float
    wilcoxon_p: float
    equivalence_p: float


def weigh(log_ratios: Sequence[float] | npt.NDArray[np.float64], plan: ComparisonPlan) -> Evidence:
    """Effect, interval and p-values of at least one log-ratio."""
    low, high = hodges_lehmann_interval(log_ratios, plan.confidence)
    return Evidence(
        pairs=len(log_ratios),
        effect=math.expm1(hodges_lehmann(log_ratios)),
        interval=(math.expm1(low), math.expm1(high)),
        p=location_p(log_ratios, "two-sided"),
        wilcoxon_p=wilcoxon_p(log_ratios, "two-sided"),
        equivalence_p=equivalence_p(log_ratios, math.log1p(plan.margin)),
    )


def judge(
    evidence: Mapping[str, Evidence], look: int, hypotheses: int, plan: ComparisonPlan
) -> dict[str, Verdict]:
    """The verdict on each open benchmark at a look; `INCONCLUSIVE` where the look does not tell.

    Parameters
    ----------
    look
        Index into the plan's looks.
    hypotheses
        Benchmarks of the comparison that have not been called slower or faster, those called
        equivalent included.
    """
    significant = holm(
        {name: entry.p for name, entry in evidence.items()},
        lambda share: plan.difference_level(look, share),
        hypotheses,
    )
    return {
        name: _verdict(entry, name in significant, plan.equivalence_level(look), plan)
        for name, entry in evidence.items()
    }


def _verdict(
    entry: Evidence, is_significant: bool, equivalence_level: float, plan: ComparisonPlan
) -> Verdict:
    # As log-ratios, so that faster and slower are held to the same: 1 / 1.01 is 1 % faster.
    shift, least = math.log1p(entry.effect), math.log1p(plan.minimum_effect)
    if is_significant and shift >= least:
        return Verdict.SLOWER
    if is_significant and shift <= -least:
        return Verdict.FASTER
    if entry.equivalence_p <= equivalence_level:
        return Verdict.EQUIVALENT
    return Verdict.INCONCLUSIVE
