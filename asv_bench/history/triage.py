"""A change on its way from a suspicion to a verdict, with all that triage needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asv_bench.compare.confirmation import Confirmation
from asv_bench.history.change_points import Change, Point

UNCONFIRMED = "unconfirmed candidate"


@dataclass(frozen=True, slots=True)
class Triaged:
    """A change, the series that it is in, and what comparing said: None if nothing was compared."""

    change: Change
    points: tuple[Point, ...]
    confirmation: Confirmation | None

    @property
    def standing(self) -> str:
        """What may be said of it."""
        return UNCONFIRMED if self.confirmation is None else str(self.confirmation.standing)

    @property
    def title(self) -> str:
        """The benchmark with its parameters, readable."""
        series = self.change.series
        return f"{series.benchmark}, {series.label}" if series.label else series.benchmark

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        return {
            **self.change.to_json(),
            "author": self.change.commit.author or None,
            "standing": self.standing,
            "confirmation": None if self.confirmation is None else self.confirmation.to_json(),
        }
