"""A bisection as a person reads it: a line for each probe, a table of commits, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from asv_bench.bisect.finding import (
    CurvePoint,
    Direction,
    Finding,
    Outcome,
    Probe,
    RangeShape,
    Stage,
    Step,
)
from asv_bench.compare.verdict import Comparison, word_of
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.output.progress import Progress
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage

_SUBJECT = 60
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
        self._has_compared = False  # whether a step was, with the commit before it
        self._bar = Progress(
            console, "warming up (each end once), then measuring", most, "pairs at most"
        )

    def __enter__(self) -> ProbeLines:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, probe: Probe, *, is_kept: bool = False) -> None:
        """Count a probe, and print it where it is one of the search.

        A kept one took no time, and says nothing of the time that is left.
        """
        is_confirmation = probe.stage is Stage.CONFIRMATION
        self._has_compared |= is_confirmation
        stage = probe.stage, probe.commit if is_confirmation else ""
        if stage != self._stage:
            self._begin(probe.stage)
            self._stage, self._in_stage = stage, 0
        self._number += 1
        self._in_stage += 1
        left = None
        if probe.stage is Stage.SEARCH:
            left = probe.guess.pairs_left if probe.guess else None
            self._console.print(self._line(probe))
        if not is_kept:
            total = None if left is None else self._in_stage + left
            self._bar.show(self._in_stage, _DOING[probe.stage], total=total)

    def _begin(self, stage: Stage) -> None:
        total = (None, "pairs") if stage is Stage.SEARCH else (self._most, "pairs at most")
        self._bar.__exit__()
        self._bar = Progress(self._console, _DOING[stage], *total)
        self._bar.__enter__()

    def _line(self, probe: Probe) -> Text:
        """Which commit, how it compares with the good end, and what is most probable now."""
        line = Text(f"{self._number:4d}  {short(probe.commit)}  ")
        if probe.pair is None:
            line.append(probe.failure, style="red")
        else:
            line.append(f"{percentage(probe.pair.effect, 2, signed=True):>9}")
            if probe.pair.discarded:
                line.append(f"  discarded: {probe.pair.discarded}", style="yellow")
        if probe.guess is None:
            return line
        suspects = probe.guess.commits
        said = " to ".join(
            dict.fromkeys(short(one) for one in suspects[:: max(1, len(suspects) - 1)])
        )
        nowhere = "no other" if self._has_compared else "none of them"
        line.append(f"   {said or nowhere}, {probe.guess.probability:.0%}", style="dim")
        if len(suspects) == 1 and suspects[0] in self._commits:
            subject = self._commits[suspects[0]].subject
            cut = subject if len(subject) <= _SUBJECT else f"{subject[: _SUBJECT - 1]}…"
            line.append(f" {cut}", style="dim")
        return line


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
    changed = "regression" if finding.direction is Direction.REGRESSION else "improvement"
    named = finding.confirmed_steps
    if finding.outcome is Outcome.FOUND:
        lines = [_found(finding, commits)]
    elif finding.outcome is Outcome.NONE:
        lines = [f"no {changed}: {finding.reason}."]
    elif finding.shape is RangeShape.SLOPE:
        lines = [f"{finding.reason}."]
    else:
        lines = [f"inconclusive: {finding.reason}."]
        if finding.suspects:
            first, last = finding.suspects[0], finding.suspects[-1]
            suspects = _suspected((last,), commits)
            if first != last:
                count = f"{len(finding.suspects)} {kind_of(finding.bad)}s"
                suspects = f"{count}, {short(first)} to {short(last)}"
            lines.append(f"Most suspect: {suspects}, probability {finding.probability or 0:.1%}.")
    lines.append(f"The ends: {compared(finding.gate)}.")
    if named and (len(named) > 1 or finding.outcome is not Outcome.FOUND):
        lines += [f"{_stepped(step)} at {_suspected(step.commits, commits)}." for step in named]
    lines += [
        f"{short(one.head)} against {short(one.base)}, before it: {compared(one)}."
        for one in finding.confirmations
    ]
    if finding.remark:
        lines.append(finding.remark)
    for commit, reason in finding.unmeasurable.items():
        lines.append(f"{short(commit)} was left out, it cannot be measured: {reason}")
    return lines


def _found(finding: Finding, commits: Mapping[str, Commit]) -> str:
    """The named commits in a sentence."""
    named = finding.confirmed_steps
    if len(named) == 1:
        described = _suspected(finding.suspects, commits)
        kind = kind_of(finding.bad)
        probability = f"probability {finding.probability or 0:.1%}"
        verdict, gate = finding.direction.verdict, finding.gate
        word = word_of(verdict, gate.unit, named[0].effect)
        first = f"first {word} {kind}"
        if word != verdict:
            first = f"first {kind} with {word} {finding.benchmark}"
        return f"{first}: {described}, {probability}."
    steps = ", ".join(f"{_stepped(step)} at {short(step.commit)}" for step in named)
    return f"{len(named)} steps: {steps}."


def _stepped(step: Step) -> str:
    return percentage(step.effect, 1, signed=True)


def _suspected(hashes: Sequence[str], commits: Mapping[str, Commit]) -> str:
    described = [_described(commits[commit]) for commit in hashes]
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


def _described(commit: Commit) -> str:
    """A commit with its message and author; a label has neither."""
    author = f"({commit.author})" if commit.author else ""
    return " ".join(filter(None, (commit.short, commit.subject, author)))
