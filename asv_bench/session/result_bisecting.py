"""Bisections for another result: halving, and a look back, from the first process to the record.

Every life of a commit runs beside one of the good end, so that a result that differs from life to
life is seen. A commit that cannot be measured is left out, and its neighbour is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asv_bench.bisect.finding import Outcome
from asv_bench.compare.checks import first_difference
from asv_bench.errors import TimeIsUp
from asv_bench.git.repository import kind_of, short
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import CommitUnusable, Metric, RoundSource, SampleFailed
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.table import Column, Table
from asv_bench.session.bisecting import BY_OUTCOME, CommitRange
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject

LIVES = 2
"""Of both ends, and of the commit that is named and the one before it."""
SAME, OTHER = "same", "other"
_COLUMNS = (
    Column("subject", "commit and subject", kind="text"),
    Column("commit", "commit", kind="data"),
    Column("result", "result", kind="text"),
)


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


class BisectingResults(Judging):
    """One search for the first commit with another result than the good end's."""

    finding: ResultFinding | None = None

    def __init__(
        self,
        subject: DeclaredSubject,
        among: CommitRange,
        check: Metric,
    ) -> None:
        super().__init__("bisect", {**among.to_json(), "check": check.name}, subject)
        self._range, self._check = among, check
        self._good, self._hashes = among.good, among.hashes
        self._seen: dict[str, str] = {}
        """Of each commit that was looked at: `SAME`, `OTHER`, or why it cannot be."""
        self._what: dict[str, str] = {}  # how results differ
        self._right: tuple[str, ...] = ()  # the result of the good end

    def _is_clear(self) -> bool:
        return self.finding is not None and self.finding.outcome is not Outcome.INCONCLUSIVE

    def names(self) -> Sequence[str]:
        return [self._good, *self._hashes]

    def begin(self) -> list[str]:
        return [self._range.sentence(f"another result of {self._check.name}")]

    def measure(self, source: RoundSource) -> ExitCode:
        """Look at the ends, search, and look again at the commit and the one before it.

        Raises CommitUnusable where an end cannot be measured, or leaves no such result.
        """
        self._source = Logged(source, self._log, "results")
        what = "looking at the ends, then between"
        with Progress(self._console, what, None, "looks") as self._progress:
            self.finding = self._search()
        return BY_OUTCOME[self.finding.outcome]

    def _search(self) -> ResultFinding:
        hashes, low, high = self._hashes, -1, len(self._hashes) - 1
        reason = ""
        try:
            if not self._is_other(hashes[high]):
                return self._found(Outcome.NONE, "the ends give the same result")
            usable = list(range(high))
            while left := [one for one in usable if low < one < high]:
                middle = left[len(left) // 2]
                try:
                    is_other = self._is_other(hashes[middle], lives=1)
                except CommitUnusable as error:
                    self._look(hashes[middle], error.reason)
                    usable.remove(middle)
                    continue
                low, high = (low, middle) if is_other else (middle, high)
            before = hashes[low] if low >= 0 else ""
            named = hashes[high]
            is_next = high == low + 1
            if is_next and self._is_other(named) and not (before and self._is_other(before)):
                return self._found(Outcome.FOUND, "looked at again", named, (named,))
            reason = "between them no commit can be measured"
            if is_next:
                reason = "looked at again, it was not the first with another result"
        except _Unstable as error:
            reason = f"the good end gives different results: {error}"
        except KeyboardInterrupt as error:
            self._stopped = error
            reason = "time was up" if isinstance(error, TimeIsUp) else "it was interrupted"
        suspects = tuple(hashes[low + 1 : high + 1])
        return self._found(Outcome.INCONCLUSIVE, reason, suspects=suspects)

    def _found(
        self, outcome: Outcome, reason: str, commit: str = "", suspects: tuple[str, ...] = ()
    ) -> ResultFinding:
        ends, what = (self._good, self._hashes[-1]), self._what.get(commit, "")
        return ResultFinding(outcome, self._check.name, *ends, reason, commit, what, suspects)

    def _look(self, commit: str, seen: str) -> None:
        """Say and keep what a look showed."""
        self._seen[commit] = seen
        print_sentences(self._console, [f"{short(commit)}: {seen}"])
        self._progress.show(len(self._seen), "searching")

    def _is_other(self, commit: str, lives: int = LIVES) -> bool:
        """Whether a commit gives another result than the good end in any of so many lives."""
        found = SAME
        for number in range(lives):
            base, head = self._results_beside(commit, number)
            self._right = self._right or base
            if base != self._right:
                raise _Unstable(first_difference(self._right, base))
            if head != base:
                found = OTHER
                self._what[commit] = first_difference(base, head)
        self._look(commit, found)
        return found == OTHER

    def _results_beside(self, commit: str, number: int) -> list[tuple[str, ...]]:
        """Of a life of the good end, and of one of the commit."""
        name, ends = self._check.name, [self._good, commit]
        for one in ends:
            if (absence := self._source.prepare(one).get(name)) is not None:
                raise CommitUnusable(one, absence.reason, is_lacking=not absence.has_failed)
        order = (1, 0) if number % 2 else (0, 1)
        try:
            measured = self._source.round(ends, order, [name])
        except SampleFailed as error:
            raise CommitUnusable(error.commit, error.reason) from None
        return [of_cell[name].results for of_cell in measured.readings]

    def print_answer(self) -> None:
        assert self.finding is not None
        rows = [
            (f"{one.short} {one.subject}".rstrip(), one.hash, self._seen[one.hash])
            for one in self._range.commits
            if one.hash in self._seen
        ]
        title = f"{self._check.name}: results beside that of {short(self._good)}, the good end"
        table, answer = Table(_COLUMNS, rows, title), self._answer(self.finding)
        self._record.results["answer"] = answer
        print_sentences(self._console, [answer], "bold")
        remarks, on_page = self._record.warnings, self._range.on_page()
        page = self._issue(heading=answer, tables=[table], remarks=remarks, **on_page)
        self._files.show(table, page=page)

    def _answer(self, finding: ResultFinding) -> str:
        kind = kind_of(self._good)
        if finding.outcome is Outcome.NONE:
            return f"no {kind} with another result of {finding.check} is named: {finding.reason}."
        if finding.outcome is Outcome.FOUND:
            [commit] = (one for one in self._range.commits if one.hash == finding.commit)
            named = f"{commit.short} {commit.subject}".rstrip()
            return f"first {kind} with another result: {named}; {finding.check}: {finding.what}."
        ends = dict.fromkeys(map(short, (*finding.suspects[:1], *finding.suspects[-1:])))
        return (
            f"inconclusive: {finding.reason}; the first {kind} with another result of "
            f"{finding.check} is among {' to '.join(ends)}."
        )

    def results(self) -> dict[str, Any]:
        if self.finding is None:
            return {"finding": None}
        found = {"outcome": "other result"} if self.finding.outcome is Outcome.FOUND else {}
        return {"finding": asdict(self.finding), "seen": self._seen, **found}
