"""Changes that history suggests: what to compare for each, and how the result is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asv_bench.compare.confirmation import Standing, Suspicion
from asv_bench.compare.verdict import Comparison
from asv_bench.history.acknowledged import Acknowledgement, reason_for
from asv_bench.history.asv_results import EnvironmentFacts, differing
from asv_bench.history.change_points import Change, Point
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent

_STYLES = {
    Standing.REGRESSION: "bold red",
    Standing.IMPROVEMENT: "bold green",
    Standing.REFUTED: "dim",
    Standing.UNRESOLVED: "yellow",
    Standing.NOT_COMPARED: "dim",
    Standing.CANDIDATE: "yellow",
}
_COLUMNS = (
    Column("benchmark", "benchmark and commit", kind="name"),
    Column("commit", "commit", kind="data"),
    Column("after", "after", kind="data"),
    Column("up_to", "up to", kind="data"),
    Column("machine", "machine"),
    Column("change", "change", show=percent(1, signed=True)),
    Column("interval", "interval", show=interval(1), parts=("low", "high")),
    Column("compared", "compared", show=percent(2, signed=True)),
    Column("standing", "standing"),
)


@dataclass(frozen=True, slots=True)
class Triaged:
    """A change and its result."""

    change: Change
    points: tuple[Point, ...]  # the series that the change is in
    answer: Comparison | None  # the comparison of its commits; None if nothing was compared
    environment: str = ""
    """How the change's environment differs from others of its machine that changed; else ""."""
    acknowledged: str = ""  # why somebody lives with the change; else ""

    @property
    def standing(self) -> Standing:
        """The standing of the change after the comparison."""
        return Standing.of(self.answer, is_worse=self.change.is_worse)

    @property
    def state(self) -> str:
        """Its standing, or that it is acknowledged, and why."""
        return f"acknowledged: {self.acknowledged}" if self.acknowledged else str(self.standing)

    @property
    def title(self) -> str:
        """The benchmark with its parameters, readable."""
        series = self.change.series
        return f"{series.benchmark}, {series.label}" if series.label else series.benchmark

    @property
    def bisection(self) -> str:
        """How to find its commit; empty but where a regression may lie at several commits."""
        change, is_regression = self.change, self.standing is Standing.REGRESSION
        if self.answer is None or not is_regression or change.is_placed:
            return ""
        # Quotes around texts would end the shell's own; a dot finds them too.
        pattern = re.escape(self.answer.benchmark).replace("'", ".")
        command = "kvtrail bisect" if change.better else "nox -s bisect --"
        return (
            f"which one it was: {command} {change.since.short} {change.until.short} --metric "
            f"'^{pattern}$'"
        )

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        told = {"change": self.change.effect, "standing": self.standing}
        return {
            **self.change.to_json(),
            "author": self.change.commit.author or None,
            "standing": self.standing,
            "acknowledged": self.acknowledged or None,
            "confirmation": None if self.answer is None else told | self.answer.to_json(),
        }


def suspicions_of(
    found: Sequence[Change], names: Sequence[str]
) -> tuple[dict[Change, Suspicion], list[str]]:
    """What to compare for each change; and a sentence for each of a benchmark that is gone.

    `names` are those of today's benchmarks with parameters, or of a subject's metrics.
    """
    # Stored results are read without the quotes of texts (`asv_results.Series`).
    today = {_unquoted(name): name for name in names}
    suspicions: dict[Change, Suspicion] = {}
    gone: list[str] = []
    for change in found:
        values = ", ".join(value for _, value in change.series.params)
        name = f"{change.series.benchmark}({values})" if values else change.series.benchmark
        found_today = today.get(_unquoted(name))
        if found_today is not None:
            suspicions[change] = Suspicion(change.since.hash, change.until.hash, found_today)
        else:
            gone.append(
                f"today's benchmarks have no {name}: the change is of a benchmark that was renamed "
                f"or removed, and cannot be measured again."
            )
    return suspicions, gone


def _unquoted(name: str) -> str:
    return re.sub("['\"]", "", name)


def triage(
    found: Sequence[tuple[Change, Sequence[Point]]],
    answers: Mapping[Change, Comparison],
    acknowledged: Sequence[Acknowledgement] = (),
) -> list[Triaged]:
    """Changes with their answers, where there are any, and why they are acknowledged."""
    environments: dict[str, list[EnvironmentFacts]] = {}
    for change, _ in found:
        environments.setdefault(change.machine, []).append(change.environment)
    return [
        Triaged(
            change,
            tuple(points),
            answers.get(change),
            differing(change.environment, environments[change.machine]),
            reason_for(change, acknowledged),
        )
        for change, points in found
    ]


def change_table(triaged: Sequence[Triaged]) -> Table:
    """A row for each change; of a machine with changes in several environments, with which."""
    return Table(
        _COLUMNS,
        [_row(entry) for entry in triaged],
        title="changes in the stored histories",
        caption="A candidate is a change of level in stored figures; only a comparison of the "
        "commits around it makes it a regression or an improvement.",
    )


def _row(entry: Triaged) -> Row:
    change = entry.change
    note = f"{change.commit.short} {change.commit.subject}"
    if not change.is_placed:
        note += f"\nor one of {change.since.short}..{change.until.short}"
    if entry.environment:
        note += f"\nwith {entry.environment}"
    return (
        Cell(entry.title, note=note),
        change.commit.hash,
        change.since.hash,
        change.until.hash,
        change.machine,
        change.effect,
        change.interval,
        entry.answer.effect if entry.answer else None,
        Cell(entry.state, "dim" if entry.acknowledged else _STYLES[entry.standing]),
    )
