"""What a run found of a claim: effects, intervals and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asv_bench.compare.comparison import with_pairs
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.samples import Pair
from asv_bench.studies.ladder.claims import SECONDS_PER_TOKEN, Reported, Trial

QUICK_PAIRS = 8


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
    comparison
        The answer about decode throughput.
    figures
        Every reported figure.
    """

    trial: Trial
    comparison: Comparison
    figures: tuple[FoundFigure, ...]

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        claim, comparison = self.trial.claim, self.comparison
        return {
            "seed": claim.seed,
            "what": claim.what,
            "workload": claim.workload,
            "base": self.trial.base.label,
            "head": self.trial.head.label,
            "as_claimed": self.trial.is_as_claimed,
            "finding": str(comparison.verdict),
            "figures": [figure.to_json() for figure in self.figures],
            "pairs": comparison.pairs_used,
            "p": comparison.p,
            "reason": comparison.reason,
        }


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
        The figures of every pair that was measured; of the kept ones as many are used as the answer
        used.
    plan
        The procedure's.
    """
    kept = [pair for pair in pairs if pair[SECONDS_PER_TOKEN].discarded is None]
    used = kept[: comparison.pairs_used]
    figures = tuple(_figure(trial, reported, used, plan) for reported in trial.claim.reported)
    return FoundClaim(trial, comparison, figures)


def _figure(
    trial: Trial, reported: Reported, pairs: Sequence[Mapping[str, Pair]], plan: ComparisonPlan
) -> FoundFigure:
    ends = trial.base.label, trial.head.label
    unjudged = Comparison(reported.figure, *ends, Verdict.INCONCLUSIVE)
    summary = with_pairs(unjudged, [pair[reported.figure] for pair in pairs], plan)
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
