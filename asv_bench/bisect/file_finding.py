"""What a search among the files of a change came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asv_bench.bisect.finding import Direction, Outcome
from asv_bench.compare.verdict import Comparison
from asv_bench.stats.paired import Share


@dataclass(frozen=True, slots=True)
class FileTry:
    """A part of the change that was compared, or could not be."""

    before: tuple[int, ...]  # changes that its base has beside the parent, by number
    changes: tuple[int, ...]  # those that it adds, by number
    commit: str  # its full hash; "" where git could not make it
    comparison: Comparison | None  # with its base; None where it cannot be measured
    why_not: str = ""  # why it cannot be tried; "" where it was


@dataclass(frozen=True, slots=True)
class Guilty:
    """The smallest set of changes that was found to have an effect."""

    before: tuple[int, ...]  # this and `changes` are as in `FileTry`
    changes: tuple[int, ...]
    comparison: Comparison  # the set against its base, by pairs of their own
    against_whole: Comparison | None
    """The set against the whole change, in the same rounds; None where it is all that was left."""
    share: Share | None
    """How much it is of what the whole change does to that base; None where it is all of that."""
    is_confirmed: bool  # whether the comparison shows the effect that is looked for
    alpha: float  # the error that the rounds were allowed


@dataclass(frozen=True, slots=True)
class FileFinding:
    """The answer."""

    outcome: Outcome
    direction: Direction
    reason: str  # a clause that says why the outcome is what it is
    gate: Comparison  # the whole change against its parent
    guilty: tuple[Guilty, ...] = ()
    """Sets of changes in the order they were found; the last may not be confirmed."""
    tries: tuple[FileTry, ...] = ()  # every part that was compared, in order
    is_cut: bool = False  # whether the search ended because it had taken as many pairs as it may

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
