"""What a search among the files of a change came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asv_bench.bisect.finding import Direction, Outcome
from asv_bench.compare.verdict import Comparison
from asv_bench.stats.share import Share


@dataclass(frozen=True, slots=True)
class FileTry:
    """A part of the change that was compared, or could not be.

    Attributes
    ----------
    before
        Changes that its base already has, beside the parent, by number.
    changes
        Those that it adds, by number.
    commit
        Its full hash; "" where git could not make it.
    comparison
        With its base; None where it cannot be measured.
    why_not
        Why it cannot be tried; "" where it was.
    """

    before: tuple[int, ...]
    changes: tuple[int, ...]
    commit: str
    comparison: Comparison | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Guilty:
    """The smallest set of changes that was found to have an effect.

    Attributes
    ----------
    before, changes
        As in `FileTry`.
    comparison
        The set against its base, by pairs of their own.
    against_whole
        The set against the whole change, in the same rounds; None where it is all that was left.
    share
        How much it is of what the whole change does to that base; None where it is all of that.
    is_confirmed
        Whether the comparison shows the effect that is looked for.
    alpha
        The error that the rounds were allowed.
    """

    before: tuple[int, ...]
    changes: tuple[int, ...]
    comparison: Comparison
    against_whole: Comparison | None
    share: Share | None
    is_confirmed: bool
    alpha: float


@dataclass(frozen=True, slots=True)
class FileFinding:
    """The answer.

    Attributes
    ----------
    reason
        A clause that says why the outcome is what it is.
    gate
        The whole change against its parent.
    guilty
        Sets of changes in the order they were found; the last may not be confirmed.
    tries
        Every part that was compared, in order.
    is_cut
        Whether the search ended because it had taken as many pairs as it may.
    """

    outcome: Outcome
    direction: Direction
    reason: str
    gate: Comparison
    guilty: tuple[Guilty, ...] = ()
    tries: tuple[FileTry, ...] = ()
    is_cut: bool = False

    @property
    def named(self) -> list[Guilty]:
        """The sets that are confirmed."""
        return [one for one in self.guilty if one.is_confirmed]

    def shares(self) -> list[float]:
        """How much of the whole effect each named set is, as logarithms."""
        left, found = 1.0, []
        for one in self.named:
            of_left = 1.0 if one.share is None else one.share.value
            found.append(left * of_left)
            left *= 1.0 - of_left
        return found

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values; changes are numbers in the record's list of them."""
        return {**asdict(self), "shares": self.shares()}
