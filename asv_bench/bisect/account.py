"""A search as a person reads it: a line for each probe or part, a table, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from asv_bench.bisect.file_search import FileFinding, FileTry, Guilty
from asv_bench.bisect.finding import (
    CurvePoint,
    Finding,
    Guess,
    Outcome,
    Probe,
    RangeShape,
    Stage,
    Step,
)
from asv_bench.compare.verdict import Comparison, word_of
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.git.trees import FileChange
from asv_bench.output.progress import Progress
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.words import first_of

_SUBJECT = 61
_LIKELY = 0.005
_DOING = {
    Stage.GATE: "comparing the ends",
    Stage.SEARCH: "searching",
    Stage.CONFIRMATION: "confirming",
}
_COLUMNS = (
    Column("subject", "commit and subject", kind="text"),
    Column("commit", "commit", kind="data"),
    Column("pairs", "pairs"),
    Column("difference", "level", show=percent(2, signed=True)),
    Column("half_width", "±", show=percent(2)),
    Column("probability", "step", show=percent(1)),
)
_FILE_COLUMNS = (
    Column("files", "files changed", kind="text"),
    Column("count", "files"),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("pairs", "pairs"),
)


class ProbeLines:
    """Shows each probe of the search in a line as it comes, and how long each stage takes.

    `commits` are by hash; a comparison takes `most` pairs at most.
    """

    def __init__(self, console: Console, commits: Mapping[str, Commit], most: int) -> None:
        self._console = console
        self._commits = commits
        self._most = most
        self._number = 0
        self._in_stage = 0
        self._stage = Stage.GATE, ""
        first = "warming up (each end once), then measuring"
        self._bar = Progress(console, first, most, "pairs at most")

    def __enter__(self) -> ProbeLines:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, probe: Probe, *, is_kept: bool = False) -> None:
        """Count a probe, and print it where it is one of the search.

        A kept one took no time, and says nothing of the time that is left.
        """
        stage = probe.stage, probe.commit if probe.stage is Stage.CONFIRMATION else ""
        if stage != self._stage:
            self._stage, self._in_stage = stage, 0
            most = (None, "pairs") if probe.guess else (self._most, "pairs at most")
            self._bar.__exit__()
            self._bar = Progress(self._console, _DOING[probe.stage], *most)
            self._bar.__enter__()
        self._number += 1
        self._in_stage += 1
        if probe.guess is not None:
            self._console.print(self._line(probe, probe.guess))
        if not is_kept:
            total = self._in_stage + probe.guess.pairs_left if probe.guess else None
            self._bar.show(self._in_stage, _DOING[probe.stage], total=total)

    def _line(self, probe: Probe, guess: Guess) -> Text:
        """Which commit, how it compares with the good end, and what is most probable now."""
        line = Text(f"{self._number:4d}  {short(probe.commit)}  ")
        if probe.pair is None:
            line.append(probe.failure, style="red")
        else:
            line.append(f"{percentage(probe.pair.effect, 2, signed=True):>9}")
            if probe.pair.discarded:
                line.append(f"  discarded: {probe.pair.discarded}", style="yellow")
        ends = dict.fromkeys(short(one) for one in (*guess.commits[:1], *guess.commits[-1:]))
        where = " to ".join(ends) or "no other"
        said = Text(f"   {where}, {guess.probability:.0%}", style="dim")
        if len(guess.commits) == 1:
            subject = Text(f" {self._commits[guess.commits[0]].subject}")
            subject.truncate(_SUBJECT, overflow="ellipsis")
            said.append(subject)
        return line.append(said)


def commit_table(finding: Finding, commits: Sequence[Commit]) -> Table:
    """The commits that were measured or suspected, oldest first, each against the good end."""
    points = {point.commit: point for point in finding.curve}
    return Table(
        _COLUMNS,
        [
            _row(commit, points.get(commit.hash), finding)
            for commit in commits
            if commit.hash in points
            or commit.hash in finding.unmeasurable
            or finding.posterior.get(commit.hash, 0.0) >= _LIKELY
        ],
        title=f"{finding.benchmark}: {kind_of(finding.bad)}s against {short(finding.good)}, the "
        "good end",
        caption="level: change against the good end, fitted to all pairs, ± half its interval of "
        f"95 %. step: how probably this {kind_of(finding.bad)} made it.",
    )


def _row(commit: Commit, point: CurvePoint | None, finding: Finding) -> Row:
    named = {one for step in finding.confirmed_steps for one in step.commits}
    style = "bold" if commit.hash in named or commit.hash in finding.suspects else ""
    name = Cell(f"{commit.short} {commit.subject}", style)
    if commit.hash in finding.unmeasurable:
        nothing = Cell(None, text="")
        unmeasured = Cell(None, text="cannot be measured")
        return name, commit.hash, nothing, unmeasured, nothing, nothing
    probability = finding.posterior.get(commit.hash, 0.0)
    shown = probability if probability >= _LIKELY else None
    if point is None:
        return name, commit.hash, 0, None, None, shown
    half_width = (point.interval[1] - point.interval[0]) / 2.0
    return name, commit.hash, point.pairs, point.effect, half_width, shown


def answer_lines(finding: Finding, commits: Mapping[str, Commit]) -> list[str]:
    """The answer in sentences; the first is the answer in short."""
    named, kind = finding.confirmed_steps, kind_of(finding.bad)
    chance = f"probability {finding.probability or 0:.1%}"
    if finding.outcome is Outcome.FOUND and len(named) > 1:
        steps = ", ".join(f"{_stepped(step)} at {short(step.commit)}" for step in named)
        lines = [f"{len(named)} steps: {steps}."]
    elif finding.outcome is Outcome.FOUND:
        verdict, gate = finding.direction.verdict, finding.gate
        word = word_of(verdict, gate.unit, named[0].effect)
        what = f"{word} {kind}" if word == verdict else f"{kind} with {word} {finding.benchmark}"
        lines = [f"first {what}: {_suspected(finding.suspects, commits)}, {chance}."]
    elif finding.outcome is Outcome.NONE:
        lines = [f"no {finding.direction}: {finding.reason}."]
    elif finding.shape is RangeShape.SLOPE:
        lines = [f"{finding.reason}."]
    else:
        lines = [f"inconclusive: {finding.reason}."]
        if finding.suspects:
            first, last = finding.suspects[0], finding.suspects[-1]
            suspects = f"{len(finding.suspects)} {kind}s, {short(first)} to {short(last)}"
            if first == last:
                suspects = _suspected((last,), commits)
            lines.append(f"Most suspect: {suspects}, {chance}.")
    lines.append(f"The ends: {compared(finding.gate)}.")
    if len(named) > 1 or finding.outcome is not Outcome.FOUND:
        lines += [f"{_stepped(step)} at {_suspected(step.commits, commits)}." for step in named]
    lines += [
        f"{short(one.head)} against {short(one.base)}, before it: {compared(one)}."
        for one in finding.confirmations
    ]
    lines += filter(None, [finding.remark])
    for commit, reason in finding.unmeasurable.items():
        lines.append(f"{short(commit)} was left out, it cannot be measured: {reason}")
    return lines


def _stepped(step: Step) -> str:
    return percentage(step.effect, 1, signed=True)


def _suspected(hashes: Sequence[str], commits: Mapping[str, Commit]) -> str:
    """Commits with their messages and authors; a label has neither."""
    described = [
        " ".join(filter(None, (one.short, one.subject, f"({one.author})" if one.author else "")))
        for one in (commits[commit] for commit in hashes)
    ]
    if len(described) == 1:
        return described[0]
    return (
        f"one of these {len(described)}, of which only the last could be measured: "
        f"{'; '.join(described)}"
    )


def compared(comparison: Comparison) -> str:
    """A comparison in a clause: verdict, effect, interval and pairs."""
    if comparison.effect is None:
        return comparison.word
    text = f"{comparison.word}, {percentage(comparison.effect, 2, signed=True)}"
    if comparison.interval is not None:
        text += f" ({interval(2)(comparison.interval)})"
    return f"{text} in {comparison.pairs_used} pairs"


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
            _FILE_COLUMNS,
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
            return [f"no {finding.direction}: {finding.reason}.", whole]
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
