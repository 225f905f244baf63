"""What is settled before a search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from asv_bench.compare.plan import ComparisonPlan, looks_at
from asv_bench.compare.verdict import Verdict

MOST_CONFIRMATIONS = 3
"""Culprits that may fail their confirmation before a bisection gives up."""
THOROUGH = ComparisonPlan(looks=looks_at(14, 18, 24, 32, 48, 64, 96), max_discarded=24)
"""The plan for comparing the ends of a range, or a culprit with its parent.

Its cap is far beyond that of a plain comparison: a search needs two comparisons and its own answer
to be right together. A clear case is decided at the first looks all the same."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What is settled before the first pair of a bisection."""

    comparison: ComparisonPlan = THOROUGH
    """Of the two ends, before the search, and of the culprit with its parent, after it."""
    certain: float = 0.8
    """Probability of a step at one commit at which that is compared with the commit before it."""
    most_pairs: int = 200
    """Pairs of the search, after which it gives up; the comparisons' own do not count."""
    is_inside: bool = False  # whether to look between the ends also where those do not differ
    is_all: bool = False  # whether to go on when what is confirmed explains the ends

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        comparison = {"comparison": self.comparison.to_json()}
        return {**asdict(self), **comparison, "most_confirmations": MOST_CONFIRMATIONS}


class Direction(StrEnum):
    """Which change is looked for."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"

    @property
    def sign(self) -> int:
        """What turns log-ratios of this direction positive."""
        return 1 if self is Direction.REGRESSION else -1

    @property
    def phrase(self) -> str:
        """With its article."""
        return f"{'a' if self is Direction.REGRESSION else 'an'} {self}"

    @property
    def verdict(self) -> Verdict:
        """What a comparison of such a change says."""
        return Verdict.SLOWER if self is Direction.REGRESSION else Verdict.FASTER
