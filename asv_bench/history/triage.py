"""Changes on their way from a suspicion to a verdict: compared, told in a table, told in JSON."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from asv_bench.compare.catalog import Entry
from asv_bench.compare.comparison import OnPair
from asv_bench.compare.confirmation import (
    Confirmation,
    Standing,
    Suspicion,
    confirm,
    entry_named,
)
from asv_bench.compare.verdict import Comparison
from asv_bench.errors import Refused
from asv_bench.git.repository import GitError
from asv_bench.history.asv_results import EnvironmentFacts, differing
from asv_bench.history.change_points import Change, Point
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent
from asv_bench.process.samples import PairSource

UNCONFIRMED = "unconfirmed candidate"
_STYLES = {
    Standing.REGRESSION: "bold red",
    Standing.IMPROVEMENT: "bold green",
    Standing.REFUTED: "dim",
    Standing.UNRESOLVED: "yellow",
    Standing.NOT_COMPARED: "dim",
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
    """A change and what became of it.

    Attributes
    ----------
    change, points
        The change, and the series that it is in.
    confirmation
        What comparing said; None if nothing was compared.
    environment
        How the change's environment differs from others of its machine that changed; else "".
    """

    change: Change
    points: tuple[Point, ...]
    confirmation: Confirmation | None
    environment: str = ""

    @property
    def standing(self) -> str:
        """What may be said of it."""
        return UNCONFIRMED if self.confirmation is None else str(self.confirmation.standing)

    @property
    def title(self) -> str:
        """The benchmark with its parameters, readable."""
        series = self.change.series
        return f"{series.benchmark}, {series.label}" if series.label else series.benchmark

    @property
    def bisection(self) -> str:
        """How to find its commit; empty but where a regression may lie at several commits."""
        is_regression = self.standing == str(Standing.REGRESSION)
        if self.confirmation is None or not is_regression or self.change.is_placed:
            return ""
        # Quotes around texts would end the shell's own; a dot finds them too.
        pattern = re.escape(self.confirmation.comparison.benchmark).replace("'", ".")
        return (
            f"which commit it was: nox -s bisect -- {self.change.since.short} "
            f"{self.change.until.short} --benchmark '^{pattern}$'"
        )

    def to_json(self) -> dict[str, Any]:
        """The change as JSON-ready values."""
        return {
            **self.change.to_json(),
            "author": self.change.commit.author or None,
            "standing": self.standing,
            "confirmation": None if self.confirmation is None else self.confirmation.to_json(),
        }


def triage(
    found: Sequence[tuple[Change, Sequence[Point]]], confirmed: Mapping[Change, Confirmation]
) -> list[Triaged]:
    """Changes with what comparing said of some of them."""
    environments: dict[str, list[EnvironmentFacts]] = {}
    for change, _ in found:
        environments.setdefault(change.machine, []).append(change.environment)
    return [
        Triaged(
            change,
            tuple(points),
            confirmed.get(change),
            differing(change.environment, environments[change.machine]),
        )
        for change, points in found
    ]


@dataclass(slots=True)
class Confirming:
    """Comparing the commits around changes.

    Attributes
    ----------
    suspicions
        By change: what is compared, of benchmarks that there still are.
    complaints
        A sentence for each change of a benchmark that is gone.
    confirmed
        Of the changes that were compared; one that an interruption cut short is unresolved.
    is_interrupted
        Whether comparisons are missing.
    """

    suspicions: dict[Change, Suspicion]
    complaints: list[str]
    confirmed: dict[Change, Confirmation]
    is_interrupted: bool = False

    @classmethod
    def of(cls, found: Sequence[Change], entries: Sequence[Entry]) -> Confirming:
        """Comparisons to make for changes, given today's benchmarks."""
        suspicions: dict[Change, Suspicion] = {}
        complaints: list[str] = []
        for change in found:
            values = [value for _, value in change.series.params]
            try:
                entry = entry_named(entries, change.series.benchmark, values)
            except Refused as refusal:
                complaints.append(str(refusal))
                continue
            suspicions[change] = Suspicion(
                entry.name, change.since.hash, change.until.hash, change.effect
            )
        return cls(suspicions, complaints, {})

    def call_same(self, are_same: Callable[[str, str], bool]) -> None:
        """Answer those whose commits have the same engine and kernels: no commit moved them."""
        for change, one in self.suspicions.items():
            # A commit that the repository lacks is compared, and said to be lacking then.
            with contextlib.suppress(GitError):
                if are_same(one.before, one.after):
                    answer = Comparison.of_same(one.benchmark, one.before, one.after)
                    self.confirmed[change] = Confirmation(one, answer)

    @property
    def open(self) -> list[Change]:
        """The changes without an answer."""
        return [change for change in self.suspicions if change not in self.confirmed]

    def run(
        self,
        pairs_of: Callable[[Sequence[str]], AbstractContextManager[PairSource]],
        on_pair: OnPair,
    ) -> None:
        """Compare until each has an answer, or Ctrl-C."""
        done = confirm([self.suspicions[change] for change in self.open], pairs_of, on_pair)
        self.is_interrupted = done.is_interrupted
        answers = {one.suspicion: one for one in done.confirmations}
        for change in self.open:
            if self.suspicions[change] in answers:
                self.confirmed[change] = answers[self.suspicions[change]]


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
    change, confirmation = entry.change, entry.confirmation
    note = f"{change.commit.short} {change.commit.subject}"
    if not change.is_placed:
        note += f"\nor another after {change.since.short}, up to {change.until.short}"
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
        confirmation.comparison.effect if confirmation else None,
        Cell(entry.standing, _STYLES[confirmation.standing] if confirmation else "yellow"),
    )
