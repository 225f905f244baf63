"""How a bisection is decided: its two comparisons, when it is certain, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asv_bench.compare.plan import ComparisonPlan, looks_at
from asv_bench.errors import Refused

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

    def __post_init__(self) -> None:
        if not 0.5 < self.certain < 1.0:
            raise Refused(
                f"a commit cannot be certain at a probability of {self.certain}; it must lie "
                f"between 0.5 and 1, such as 0.95."
            )
        if self.most_pairs < 1:
            raise Refused(f"a search of at most {self.most_pairs} pairs finds nothing.")

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "comparison": self.comparison.to_json(),
            "certain": self.certain,
            "most_pairs": self.most_pairs,
            "is_inside": self.is_inside,
            "most_confirmations": MOST_CONFIRMATIONS,
        }
