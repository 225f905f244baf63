"""A search among files as a person reads it: a line for each part, a table, and the answer."""

from __future__ import annotations

from collections.abc import Sequence

from asv_bench.bisect.account import compared
from asv_bench.bisect.file_finding import FileFinding, FileTry, Guilty
from asv_bench.bisect.finding import Direction, Outcome
from asv_bench.compare.verdict import word_of
from asv_bench.git.file_changes import FileChange
from asv_bench.git.repository import Commit, short
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.words import first_of

_COLUMNS = (
    Column("files", "files changed", kind="text"),
    Column("count", "files"),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("pairs", "pairs"),
)


class FileWords:
    """What is said of a search among the changes of a commit.

    `changes` are in the order in which the search numbers them.
    """

    def __init__(self, changes: Sequence[FileChange], commit: Commit) -> None:
        self._changes = changes
        self._commit = commit

    def line(self, tried: FileTry) -> str:
        """One part, as soon as it was compared."""
        result = "cannot be tried" if tried.comparison is None else compared(tried.comparison)
        return f"  {self._part(tried.before, tried.changes)}: {result}"

    def table(self, finding: FileFinding) -> Table:
        """All parts that were compared, the whole first."""
        whole = FileTry((), tuple(range(len(self._changes))), finding.gate.head, finding.gate)
        named = {(one.before, one.changes) for one in finding.named}
        return Table(
            _COLUMNS,
            [
                self._row(one, is_named=(one.before, one.changes) in named)
                for one in (whole, *finding.tries)
            ],
            title=f"{finding.gate.benchmark}: parts of {self._commit.short} against "
            f"{short(finding.gate.base)}",
            caption=f"A part is {short(finding.gate.base)} with these files as "
            f"{self._commit.short} has them. What cannot be tried, such as a part that does not "
            f"build, says nothing of its files.",
        )

    def answer(self, finding: FileFinding) -> list[str]:
        """The answer in sentences; the first is the answer in short."""
        worse = word_of(finding.direction.verdict, finding.gate.unit, finding.gate.effect)
        count = f"{len(self._changes)} files"
        whole = f"The whole commit: {compared(finding.gate)}."
        if finding.outcome is Outcome.NONE:
            kind = "regression" if finding.direction is Direction.REGRESSION else "improvement"
            return [f"no {kind}: {finding.reason}.", whole]
        lines = [
            self._guilty(one, share, worse)
            for one, share in zip(finding.named, finding.shares(), strict=True)
        ]
        if not lines and finding.outcome is Outcome.FOUND:
            whole_commit = f"all {count} of {self._commit.short} together"
            lines = [f"{whole_commit} make it {worse}, and no smaller part."]
        if finding.outcome is Outcome.INCONCLUSIVE:
            lines.insert(0, f"inconclusive: {finding.reason}.")
            doubtful = [one for one in finding.guilty if not one.is_confirmed]
            lines += [f"Most suspect: {self._names(one.changes)}." for one in doubtful]
        if finding.is_cut:
            lines.append("The search ended after as many pairs as --most-pairs allows.")
        return [*lines, whole, *self._untried(finding)]

    def _guilty(self, one: Guilty, share: float, worse: str) -> str:
        effect = compared(one.comparison).removeprefix(f"{one.comparison.word}, ")
        makes = "makes" if len(one.changes) == 1 else "together make"
        also = ", with the files above," if one.before else ""
        of_all = f"{percentage(share, 0)} of the effect"
        if one.share is not None and not one.before:
            low, high = (percentage(bound, 0) for bound in one.share.interval)
            of_all += f" ({low} to {high})"
        return f"{self._names(one.changes)}{also} {makes} it {worse}: {effect}, {of_all}."

    def _untried(self, finding: FileFinding) -> list[str]:
        untried = [one for one in finding.tries if one.comparison is None]
        if not untried:
            return []
        first = untried[0]
        others = len(untried) - 1
        more = f", nor can {others} other part{'s' if others > 1 else ''}" if others else ""
        why = first.why_not.rstrip(".")
        return [f"{self._part(first.before, first.changes)} cannot be tried{more}: {why}."]

    def _row(self, tried: FileTry, *, is_named: bool) -> Row:
        name = Cell(self._part(tried.before, tried.changes), "bold" if is_named else "")
        one = tried.comparison
        if one is None:
            return name, len(tried.changes), "cannot be tried", None, None, None
        verdict = Cell(str(one.verdict), text=one.word)
        return name, len(tried.changes), verdict, one.effect, one.interval, one.pairs_used

    def _part(self, before: Sequence[int], changes: Sequence[int]) -> str:
        names = self._names(changes)
        return f"{names}, besides {self._names(before)}" if before else names

    def _names(self, changes: Sequence[int]) -> str:
        if len(changes) == len(self._changes):
            return f"all {len(changes)} files"
        return first_of([self._changes[number].label for number in changes], 3)
