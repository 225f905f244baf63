"""A bisection as a person reads it: a line for each probe, a table of commits, and the answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from asv_bench.bisect.finding import Direction, Finding, Guess, Outcome, Probe, Stage
from asv_bench.compare.verdict import Comparison
from asv_bench.git.repository import Commit
from asv_bench.output.console import add_figure_columns
from asv_bench.output.progress import Progress, clock
from asv_bench.output.table import MISSING, percentage

_SUBJECT = 60
_DOING = {
    Stage.GATE: "comparing the ends",
    Stage.CONFIRMATION: "confirming",
    Stage.IN_TURNS: "measuring ends and culprit in turns",
}


class ProbeLines:
    """Shows each probe of the search in a line as it comes, and how long the rest takes.

    Parameters
    ----------
    console
        Where to.
    commits
        By hash.
    most
        Pairs of the gate, and of a confirmation, at most.
    devices
        How many pairs are measured at the same time.
    """

    def __init__(
        self, console: Console, commits: Mapping[str, Commit], most: int, devices: int
    ) -> None:
        self._console = console
        self._commits = commits
        self._most = most
        self._devices = devices
        self._number = 0
        self._in_stage = 0
        self._stage: tuple[Stage, str] | None = None
        self._seconds: list[float] = []
        self._bar = Progress(console, "warming up, both ends run once", most, "pairs at most")

    def __enter__(self) -> ProbeLines:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, probe: Probe) -> None:
        """Count a probe, and print it where it is one of the search."""
        self._number += 1
        stage = (probe.stage, probe.commit if probe.stage is Stage.CONFIRMATION else "")
        self._in_stage = self._in_stage + 1 if stage == self._stage else 1
        self._stage = stage
        if probe.pair is not None:
            self._seconds.append(probe.pair.base.process_s + probe.pair.head.process_s)
        if probe.stage is Stage.SEARCH:
            line = probe_line(self._number, probe, self._commits)
            self._console.print(line)
        self._advance(probe)

    def _advance(self, probe: Probe) -> None:
        if probe.stage is Stage.SEARCH and probe.guess and probe.guess.pairs_left is not None:
            left = probe.guess.pairs_left
            total = self._in_stage + left
            what, about = "searching", "about"
        else:
            left = max(0, self._most - self._in_stage)
            total = self._most
            what, about = _DOING[probe.stage], "at most"
        self._bar.show(
            self._in_stage, what, total=total, left=f"{about} {left} pairs{self._time(left)} left"
        )

    def _time(self, pairs: int) -> str:
        if not self._seconds:
            return ""
        return f", {clock(pairs * statistics.median(self._seconds) / self._devices)},"


def probe_line(number: int, probe: Probe, commits: Mapping[str, Commit]) -> Text:
    """One probe: which commit, how it compares with the good end, and what that suggests."""
    line = Text(f"{number:4d}  {probe.commit[:8]}  ")
    if probe.pair is None:
        line.append(probe.failure, style="red")
    else:
        line.append(f"{percentage(math.expm1(probe.pair.log_ratio), 2, signed=True):>9}")
        if probe.pair.discarded:
            line.append(f"  discarded: {probe.pair.discarded}", style="yellow")
    if probe.guess is not None:
        line.append(f"   {guess_text(probe.guess)}", style="dim")
        if len(probe.guess.commits) == 1 and probe.guess.commits[0] in commits:
            line.append(f" {_cut(commits[probe.guess.commits[0]].subject)}", style="dim")
    return line


def guess_text(guess: Guess) -> str:
    """What is most probable, in a few words."""
    if not guess.commits:
        return f"none of them, {guess.probability:.0%}"
    if len(guess.commits) == 1:
        return f"{guess.commits[0][:8]}, {guess.probability:.0%}"
    first, last = guess.commits[0][:8], guess.commits[-1][:8]
    return f"{first} to {last}, {guess.probability:.0%}"


def commit_table(finding: Finding, probes: Sequence[Probe], commits: Sequence[Commit]) -> Table:
    """The commits that were measured or suspected, oldest first, each against the good end."""
    ratios: dict[str, list[float]] = {}
    for probe in probes:
        if probe.reference == finding.good and probe.pair and probe.pair.discarded is None:
            ratios.setdefault(probe.commit, []).append(probe.pair.log_ratio)
    table = Table(
        title=f"{finding.benchmark}: commits against {finding.good[:8]}, the good end",
        title_justify="left",
        caption="The difference is the median over pairs of processes; the probability, that this "
        "commit is the first changed one.",
    )
    table.add_column("commit and subject", overflow="fold")
    add_figure_columns(table, "pairs", "difference", "probability")
    posterior, unmeasurable = finding.posterior, finding.unmeasurable
    for commit in commits:
        probability = posterior.get(commit.hash)
        likely = probability is not None and probability >= 0.005
        if commit.hash not in ratios and commit.hash not in unmeasurable and not likely:
            continue
        name = Text(f"{commit.short} ")
        name.append(commit.subject, style="bold" if commit.hash in finding.suspects else "dim")
        if commit.hash in unmeasurable:
            table.add_row(name, "", "cannot be measured", "")
            continue
        of_commit = ratios.get(commit.hash, [])
        moved = math.expm1(statistics.median(of_commit)) if of_commit else None
        table.add_row(
            name,
            str(len(of_commit)),
            MISSING if moved is None else percentage(moved, 2, signed=True),
            percentage(probability, 1) if likely and probability is not None else MISSING,
        )
    return table


def answer_lines(finding: Finding, commits: Mapping[str, Commit]) -> list[str]:
    """The answer in sentences, the first of which says it all."""
    changed = "regression" if finding.direction is Direction.REGRESSION else "improvement"
    ends = f"The ends: {_compared(finding.gate)}."
    if finding.outcome is Outcome.NONE:
        lines = [f"no {changed}: {finding.reason}.", ends]
    elif finding.outcome is Outcome.INCONCLUSIVE:
        lines = [f"inconclusive: {finding.reason}.", ends]
        if finding.suspects:
            lines.append(f"Most suspect: {_named(finding, commits)}.")
    else:
        lines = [f"first {finding.direction.verdict} commit: {_named(finding, commits)}.", ends]
    if finding.confirmations:
        last = finding.confirmations[-1]
        lines.append(f"{last.head[:8]} against {last.base[:8]}, before it: {_compared(last)}.")
    if finding.remark:
        lines.append(finding.remark)
    for commit, reason in finding.unmeasurable.items():
        lines.append(f"{commit[:8]} was left out, it cannot be measured: {reason}")
    return lines


def _named(finding: Finding, commits: Mapping[str, Commit]) -> str:
    probability = f"probability {finding.probability:.1%}"
    described = [
        f"{commits[commit].short} {commits[commit].subject} ({commits[commit].author})"
        for commit in finding.suspects
    ]
    if len(described) == 1:
        return f"{described[0]}, {probability}"
    return (
        f"one of these {len(described)}, of which only the last could be measured: "
        f"{'; '.join(described)}; {probability}"
    )


def _compared(comparison: Comparison) -> str:
    if comparison.effect is None:
        return str(comparison.verdict)
    text = f"{comparison.verdict}, {percentage(comparison.effect, 2, signed=True)}"
    if comparison.interval is not None:
        low, high = (percentage(bound, 2, signed=True) for bound in comparison.interval)
        text += f" ({low} to {high})"
    return f"{text} in {comparison.pairs_used} pairs"


def _cut(subject: str) -> str:
    return subject if len(subject) <= _SUBJECT else f"{subject[: _SUBJECT - 1]}…"
