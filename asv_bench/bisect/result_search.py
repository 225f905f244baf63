"""Which commit is the first whose result is another than the good end's: halving, and a look back.

Every life of a commit runs beside one of the good end, so that a result that differs from life to
life is seen. A commit that cannot be measured is left out, and its neighbour is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from asv_bench.bisect.finding import Outcome
from asv_bench.compare.checks import first_difference
from asv_bench.errors import TimeIsUp
from asv_bench.measure.samples import CommitUnusable, Metric, RoundSource, SampleFailed

LIVES = 2
"""Of both ends, and of the commit that is named and the one before it."""
SAME, OTHER = "same", "other"


class _Unstable(Exception):
    """The good end gave two results; the message says how they differ."""


@dataclass(frozen=True, slots=True)
class ResultFinding:
    """The answer."""

    outcome: Outcome
    check: str
    good: str
    bad: str
    reason: str  # a clause that says why the outcome is what it is
    commit: str = ""  # the first with another result; "": none is named
    what: str = ""  # how its result differs first
    suspects: tuple[str, ...] = ()  # the commits that it may be, in their order

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready values."""
        return asdict(self)


@dataclass(slots=True)
class ResultSearch:
    """The search among `commits`, after `good` up to the last."""

    source: RoundSource
    good: str
    commits: Sequence[str]
    check: Metric
    on_look: Callable[[str, str], None] = lambda commit, seen: None
    """Told of every commit that was looked at: `SAME`, `OTHER`, or why it cannot be."""
    stopped: KeyboardInterrupt | None = field(init=False, default=None)
    """Ctrl-C, or that the time was up, before its end."""
    _right: tuple[str, ...] = field(init=False, default=())
    _what: dict[str, str] = field(init=False, default_factory=dict)

    def run(self) -> ResultFinding:
        """Look at the ends, search, and look again at the commit and the one before it.

        Raises CommitUnusable where an end cannot be measured, or leaves no such result.
        """
        bad, low, high = self.commits[-1], -1, len(self.commits) - 1
        try:
            if not self._is_other(bad):
                return self._finding(Outcome.NONE, "the ends give the same result")
            usable = list(range(high))
            while left := [one for one in usable if low < one < high]:
                middle = left[len(left) // 2]
                try:
                    is_other = self._is_other(self.commits[middle], lives=1)
                except CommitUnusable as error:
                    self.on_look(self.commits[middle], error.reason)
                    usable.remove(middle)
                    continue
                low, high = (low, middle) if is_other else (middle, high)
            before = self.commits[low] if low >= 0 else ""
            named = self.commits[high]
            is_next = high == low + 1
            if is_next and self._is_other(named) and not (before and self._is_other(before)):
                return self._finding(Outcome.FOUND, "looked at again", named, (named,))
            reason = "between them no commit can be measured"
            if is_next:
                reason = "looked at again, it was not the first with another result"
        except _Unstable as error:
            reason = f"the good end gives different results: {error}"
        except KeyboardInterrupt as error:
            self.stopped = error
            reason = "time was up" if isinstance(error, TimeIsUp) else "it was interrupted"
        suspects = tuple(self.commits[low + 1 : high + 1])
        return self._finding(Outcome.INCONCLUSIVE, reason, suspects=suspects)

    def _finding(
        self, outcome: Outcome, reason: str, commit: str = "", suspects: tuple[str, ...] = ()
    ) -> ResultFinding:
        ends, what = (self.good, self.commits[-1]), self._what.get(commit, "")
        return ResultFinding(outcome, self.check.name, *ends, reason, commit, what, suspects)

    def _is_other(self, commit: str, lives: int = LIVES) -> bool:
        """Whether a commit gives another result than the good end in any of so many lives."""
        found = SAME
        for number in range(lives):
            base, head = self._results(commit, number)
            self._right = self._right or base
            if base != self._right:
                raise _Unstable(first_difference(self._right, base))
            if head != base:
                found = OTHER
                self._what[commit] = first_difference(base, head)
        self.on_look(commit, found)
        return found == OTHER

    def _results(self, commit: str, number: int) -> list[tuple[str, ...]]:
        name = self.check.name
        for one in (self.good, commit):
            if (absence := self.source.prepare(one).get(name)) is not None:
                raise CommitUnusable(one, absence.reason, is_lacking=not absence.has_failed)
        order = (1, 0) if number % 2 else (0, 1)
        try:
            measured = self.source.round([self.good, commit], order, metrics=[name])
        except SampleFailed as error:
            raise CommitUnusable(error.commit, error.reason) from None
        return [of_cell[name].results for of_cell in measured.readings]
