"""A session of `history` or `bench`: variants of a subject are measured in rounds, and filed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console

from asv_bench.errors import (
    Interrupted,
    MeasurementFailed,
    NothingMeasured,
    Refused,
    require_packages,
)
from asv_bench.fleet.fleet import (
    FleetOptions,
    hosts_json,
    look_around,
    machines_of,
    opened_fleet,
    record_of,
)
from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.histories import Histories
from asv_bench.history.life_results import LifeResults
from asv_bench.history.life_rounds import Due, LifeRounds, Lived
from asv_bench.measure.log import Log, conditions
from asv_bench.measure.software import same_code
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.output.figure_rows import figure_text
from asv_bench.output.progress import Progress, clock
from asv_bench.output.record import RUNS, Record, command_line
from asv_bench.output.table import Cell, Column, Row, Table, percent
from asv_bench.process.run_apart import termination_as_interrupt
from asv_bench.subjects.declared import DeclaredSubject

LONG_SECONDS = 3600.0
"""Work that is expected to take longer is begun only where the user has agreed."""
KEPT = ("asv", "asv-worktree", "asv-sessions", "pages", "html")
"""Folders of histories that a session may write to."""
MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures that a session gave, and why benchmarks gave none, by their names."""

    figures: tuple[Figure, ...]
    failed: Mapping[str, str]

    def require_all(self) -> None:
        """Raise MeasurementFailed where a benchmark gave no figure at some commit."""
        if self.failed:
            reasons = "; ".join(f"{name} ({why})" for name, why in self.failed.items())
            raise MeasurementFailed(
                f"{len(self.failed)} benchmarks failed and gave no figure: {reasons}"
            )


class HistorySession:
    """A session of measuring: `rounds` lives of each commit or label.

    `results` is asv's results directory; None: that of `histories`. `command` is what measures, for
    the record.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        histories: Histories,
        rounds: int,
        fleet: FleetOptions | None = None,
        *,
        results: Path | None = None,
        command: str = "history",
    ) -> None:
        require_packages("asv", "jinja2")
        self.rounds = rounds
        self.reasons: dict[str, str] = {}  # why commits gave no figure, where that is known
        self.record: Record  # of the session, once it is measured
        self._runs = histories.folder / "runs" if histories.is_own else RUNS
        require_writable(*(histories.folder / kept / "file" for kept in KEPT), self._runs / "file")
        self._subject = subject
        self._histories = histories
        self._results = results or histories.results
        self._fleet = fleet or FleetOptions()
        self._command = command

    def measure(self, commits: Sequence[str], console: Console, *, yes: bool) -> Measured:
        """Measure lives of commits, the oldest first, in rounds; what takes long wants a yes.

        An interrupted session is not filed: its lives are kept, and the same command goes on with
        them.
        """
        subject = self._subject
        settings = {
            "commits": list(commits),
            "subject": subject.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "rounds": self.rounds,
        }
        if self._histories.is_own:
            place = self._results.relative_to(self._histories.repository)
            settings["results"] = place.as_posix()
        console.print(subject.sentence())
        with (
            opened_fleet(self._fleet, subject, commits, console, is_for_one_kind=False) as fleet,
            termination_as_interrupt(),
            subject.lives() as source,
        ):
            self.record = record = record_of(self._command, settings, fleet)
            look_around(record, console, subject, fleet)
            # What decides, beside the settings, whether lives of two sessions are alike.
            versions = {metric.name: subject.version(metric.name) for metric in subject.metrics}
            meaning = {**settings, "versions": versions, "fixed": subject.fixed}
            meaning |= conditions(record) if fleet is None else {}
            kept = Log.of_settings(meaning, self._command, noun="lives")
            print_sentences(console, kept.sentences())
            results = {
                kind: LifeResults(subject, self._histories, machine, self._results)
                for kind, machine in machines_of(record, fleet).items()
            }

            def take(due: Due, lived: Lived) -> None:
                results[due.kind].take(due.commit, lived)

            kind_of = (lambda _: record.machine.name) if fleet is None else fleet.kind_of
            rounds = LifeRounds(source, commits, self.rounds, results, kind_of, take, kept)
            self._measure(rounds, kept, console, partial(_agree, console, yes=yes))
            for commit, error in rounds.unusable.items():
                if not error.is_lacking:
                    lost = Lived({}, {metric.name: error.reason for metric in subject.metrics})
                    for one in results.values():
                        one.take(commit, lost)
            filed = [figure for one in results.values() for figure in one.file().figures]
            kept.finish()
            record.results |= hosts_json(fleet)
        about_devices = [one for of_kind in results.values() for one in of_kind.remarks()]
        print_sentences(console, subject.remarks, "yellow")
        print_sentences(console, about_devices)
        record.warn(console, same_code(subject.cells))
        self.reasons = {commit: error.reason for commit, error in rounds.unusable.items()}
        good = tuple(figure for figure in filed if not figure.failed)
        failed = {name: why for one in results.values() for name, why in one.reasons().items()}
        if not good:
            raise MeasurementFailed(f"nothing was measured: all of {', '.join(failed)} failed.")
        record.notes += [*subject.remarks, *about_devices]
        record.samples = [asdict(figure) for figure in good]
        record.results |= {
            "device_factors": {kind: one.factors() for kind, one in results.items()},
            "cells": {name: cell.to_json() for name, cell in subject.cells.items()},
            "failed": failed,
        }
        return Measured(good, failed)

    def write_record(self, path: Path | None) -> Path:
        """Write the record; where it is."""
        return self.record.write(path or self._runs / self.record.default_path().name)

    def _measure(
        self, rounds: LifeRounds, kept: Log, console: Console, agree: Callable[[float], None]
    ) -> None:
        total = self.rounds * len(rounds.commits) * len([*rounds.kinds])
        try:
            with Progress(console, "measuring", total, unit="lives") as bar:
                rounds.measure(bar.show, agree)
        except KeyboardInterrupt:
            raise Interrupted(
                f"{kept.count} of {total} lives are measured and kept, and none is filed yet. "
                f"The same command goes on with them: {command_line()}"
            ) from None
        except MeasurementFailed:
            if kept.count:
                console.print(f"{kept.count} lives are kept; the same command goes on")
            raise
        if len(rounds.unusable) == len(rounds.commits):
            [first, *_] = rounds.unusable.values()
            is_lacking = all(error.is_lacking for error in rounds.unusable.values())
            failure = NothingMeasured if is_lacking else MeasurementFailed
            raise failure(f"nothing was measured: {first}")


def _agree(console: Console, seconds: float, *, yes: bool) -> None:
    """Say how long the rest takes; Refused if that is long and nobody agreed."""
    console.print(f"expected to take about {clock(seconds)}, as the first life did")
    if seconds > LONG_SECONDS and not yes:
        raise Refused(
            f"this would take about {clock(seconds)} hours. Add --yes to begin, or measure less: a "
            f"shorter range, fewer --rounds, or some benchmarks with --benchmark."
        )


def history_table(figures: Sequence[Figure], commits: Sequence[Commit]) -> Table:
    """What `history` prints: a row for each figure and commit, which are in order.

    Each says how far it lies from the row above. It is of the first few figures, the scheduler's
    before others; the page has all.
    """
    of_series: dict[Series, dict[str, Figure]] = {}
    for figure in sorted(figures, key=lambda one: not one.series.benchmark.startswith("scheduler")):
        of_series.setdefault(figure.series, {})[figure.commit] = figure
    rows: list[Row] = []
    for series, by_commit in islice(of_series.items(), MOST_SHOWN):
        rows += [()] if rows else []
        above: float | None = None
        for commit in commits:
            if commit.hash not in by_commit:
                continue
            median = by_commit[commit.hash].median
            text = figure_text(median, by_commit[commit.hash].unit)
            name = Cell(commit.hash, text=commit.short)
            change = median / above - 1 if above else None
            rows.append((series.name, name, commit.subject, Cell(median, text=text), change))
            above = median
    columns = (
        Column("figure", "figure", kind="name"),
        Column("commit", "commit", kind="text"),
        Column("subject", "subject", kind="text"),
        Column("median", "median"),
        Column("change", "to the row above", show=percent(1, signed=True)),
    )
    caption = "Medians over processes. A difference is no verdict: noise alone makes some."
    return Table(columns, rows, "history", caption)
