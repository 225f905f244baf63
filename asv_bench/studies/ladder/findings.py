"""What a run found of a claim: effect, interval, verdict, and what it could have seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from asv_bench.compare.comparison import summarize_pairs
from asv_bench.compare.plan import ComparisonPlan, Criterion, Look
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.process.samples import Pair
from asv_bench.stats.paired import hodges_lehmann, location_p, smallest_p
from asv_bench.studies.ladder.claims import SECONDS_PER_TOKEN, Reported, Trial

ALPHA = 0.01
PAIRS = 12
QUICK_PAIRS = 8
_LEAST_FOR_AN_EARLY_LOOK = 16
_SEARCHED = 2.0  # as a logarithm: a factor of seven
_STEPS = 60


class Finding(StrEnum):
    """What the pairs say of a claim."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_RESOLVED = "not resolved"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FoundFigure:
    """One figure of a claim beside what the write-up reported.

    Changes are after / before - 1, of tokens/s for throughput and of ms for latencies, as the
    write-up gives them.

    Attributes
    ----------
    reported
        What the write-up says.
    before, after
        Medians here, in the write-up's unit.
    change, interval
        Here; None without pairs.
    """

    reported: Reported
    before: float | None
    after: float | None
    change: float | None
    interval: tuple[float, float] | None

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON-ready values."""
        reported = self.reported
        return {
            "figure": reported.figure,
            "unit": reported.unit,
            "reported": {
                "before": reported.before,
                "after": reported.after,
                "change": reported.change,
            },
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True, slots=True)
class FoundClaim:
    """A claim as this machine sees it.

    Attributes
    ----------
    trial
        The claim and its rungs here.
    finding
        The verdict, about decode throughput.
    figures
        Every reported figure.
    pairs
        How many it rests on.
    p, level
        Of the pairs, and what it had to stay below.
    smallest_change
        The smallest gain in throughput that pairs with this noise would have shown; None where
        so few could show none.
    reason
        A sentence where the finding needs one, else "".
    """

    trial: Trial
    finding: Finding
    figures: tuple[FoundFigure, ...]
    pairs: int
    p: float | None
    level: float
    smallest_change: float | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        claim = self.trial.claim
        return {
            "seed": claim.seed,
            "what": claim.what,
            "workload": claim.workload,
            "base": self.trial.base.label,
            "head": self.trial.head.label,
            "as_claimed": self.trial.is_as_claimed,
            "finding": str(self.finding),
            "figures": [figure.to_json() for figure in self.figures],
            "pairs": self.pairs,
            "p": self.p,
            "level": self.level,
            "smallest_change": self.smallest_change,
            "reason": self.reason,
        }


def ladder_plan(pairs: int) -> ComparisonPlan:
    """The compare procedure's plan for one claim: any difference counts, however small.

    From 16 pairs on there is a look at ten sixteenths of them, for claims that are plain.

    Raises
    ------
    Refused
        If so few pairs could never be significant.
    """
    if smallest_p(pairs) > ALPHA:
        raise Refused(
            f"--pairs is {pairs}: their smallest p-value is {smallest_p(pairs):.2g}, and nothing "
            f"could be significant at {ALPHA}; take at least {math.ceil(1 - math.log2(ALPHA))}."
        )
    early = () if pairs < _LEAST_FOR_AN_EARLY_LOOK else (2 * round(pairs * 5 / 16),)
    looks = tuple(Look(at, Criterion.LOCATION) for at in (*early, pairs))
    return ComparisonPlan(
        alpha=ALPHA,
        minimum_effect=0.0,
        margin=0.0,
        looks=looks,
        max_discarded=max(4, pairs // 2),
    )


def find(
    trial: Trial,
    comparison: Comparison,
    pairs: Sequence[Mapping[str, Pair]],
    plan: ComparisonPlan,
) -> FoundClaim:
    """What the compare procedure's answer means for a claim.

    Parameters
    ----------
    trial, comparison
        The claim and the answer about its decode seconds per token.
    pairs
        The figures of every pair that was handed out; of the kept ones as many are used as the
        answer used.
    plan
        The procedure's.
    """
    kept = [pair for pair in pairs if pair[SECONDS_PER_TOKEN].discarded is None]
    used = kept[: comparison.pairs_used]
    figures = tuple(_figure(trial, reported, used, plan) for reported in trial.claim.reported)
    # What the last look asks for, whichever look it ended at: the run had its chance there.
    level = 2 * plan.difference_level(len(plan.looks) - 1, 1)
    ratios = [pair[SECONDS_PER_TOKEN].log_ratio for pair in used]
    return FoundClaim(
        trial=trial,
        finding=_finding(comparison.verdict),
        figures=figures,
        pairs=len(used),
        p=comparison.p,
        level=level,
        smallest_change=smallest_change(ratios, level),
        reason=comparison.reason,
    )


def smallest_change(log_ratios: Sequence[float], level: float) -> float | None:
    """The smallest gain in throughput, as a fraction, that pairs as noisy as these would show.

    The pairs are moved to where their centre is 0, and from there towards faster until the test of
    the procedure rejects at `level`. None where it never does.
    """
    if not log_ratios or smallest_p(len(log_ratios)) > level:
        return None
    noise = np.asarray(log_ratios) - hodges_lehmann(log_ratios)
    unseen, seen = 0.0, _SEARCHED
    if location_p(noise - seen, "two-sided") > level:
        return None
    # The farther they are moved, the fewer and lower ranks are left on the other side.
    for _ in range(_STEPS):
        middle = (unseen + seen) / 2
        if location_p(noise - middle, "two-sided") > level:
            unseen = middle
        else:
            seen = middle
    return math.expm1(seen)


def _finding(verdict: Verdict) -> Finding:
    if verdict is Verdict.FASTER:
        return Finding.FASTER
    if verdict is Verdict.SLOWER:
        return Finding.SLOWER
    return Finding.FAILED if verdict is Verdict.FAILED else Finding.NOT_RESOLVED


def _figure(
    trial: Trial, reported: Reported, pairs: Sequence[Mapping[str, Pair]], plan: ComparisonPlan
) -> FoundFigure:
    summary = summarize_pairs(
        trial.base.label,
        trial.head.label,
        reported.figure,
        [pair[reported.figure] for pair in pairs],
        plan,
    )
    if summary.effect is None or summary.interval is None:
        return FoundFigure(reported, None, None, None, None)
    before, after = summary.base_value or math.nan, summary.head_value or math.nan
    low, high = summary.interval
    if reported.figure == SECONDS_PER_TOKEN:
        change, interval = _inverse(summary.effect), (_inverse(high), _inverse(low))
        return FoundFigure(reported, 1 / before, 1 / after, change, interval)
    return FoundFigure(reported, 1e3 * before, 1e3 * after, summary.effect, (low, high))


def _inverse(effect: float) -> float:
    """The change of a throughput where its time changes by `effect`."""
    if effect <= -1:
        return math.inf
    return 1 / (1 + effect) - 1
