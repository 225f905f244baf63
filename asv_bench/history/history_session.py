"""A session of `history` or `bench`: variants of a subject are measured in rounds, and filed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from asv_bench.output.record import Record, command_line
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
    """The figures of a session, with its record."""

    figures: tuple[Figure, ...]
    failed: Mapping[str, str]  # why benchmarks gave no figure at some commit, by their names
    unusable: Mapping[str, str]  # why commits gave no figure at all, where that is known
    record: Record

    def require_all(self) -> None:
        """Raise MeasurementFailed where a benchmark gave no figure at some commit."""
        if self.failed:
            reasons = "; ".join(f"{name} ({why})" for name, why in self.failed.items())
            raise MeasurementFailed(
                f"{len(self.failed)} benchmarks failed and gave no figure: {reasons}"
            )


def measure_commits(
    subject: DeclaredSubject,
    histories: Histories,
    commits: Sequence[str],
    rounds: int,
    console: Console,
    *,
    yes: bool,
    results: Path | None = None,
    fleet_options: FleetOptions | None = None,
    command: str = "history",
) -> Measured:
    """Measure so many lives of commits or labels in rounds, and file them.

    What takes long wants a yes. `results` is asv's results directory; None: that of `histories`. An
    interrupted session is not filed: its lives are kept, and the same command goes on with them.
    """
    require_packages("asv", "jinja2")
    require_writable(*(histories.folder / kept / "file" for kept in KEPT))
    results = results or histories.results
    settings = {
        "commits": list(commits),
        "subject": subject.to_json(),
        "benchmarks": [metric.name for metric in subject.metrics],
        "rounds": rounds,
    }
    if histories.is_own:
        settings["results"] = results.relative_to(histories.repository).as_posix()
    console.print(subject.sentence())
    options = fleet_options or FleetOptions()
    with (
        opened_fleet(options, subject, commits, console, is_for_one_kind=False) as fleet,
        termination_as_interrupt(),
        subject.lives() as source,
    ):
        record = record_of(command, settings, fleet)
        look_around(record, console, subject, fleet)
        # What decides, beside the settings, whether lives of two sessions are alike.
        versions = {metric.name: subject.version(metric.name) for metric in subject.metrics}
        meaning = {**settings, "versions": versions, "fixed": subject.fixed}
        meaning |= conditions(record) if fleet is None else {}
        kept = Log.of_settings(meaning, command, noun="lives")
        print_sentences(console, kept.sentences())
        of_kind = {
            kind: LifeResults(subject, histories, machine, results)
            for kind, machine in machines_of(record, fleet).items()
        }

        def take(due: Due, lived: Lived) -> None:
            of_kind[due.kind].take(due.commit, lived)

        kind_of = (lambda _: record.machine.name) if fleet is None else fleet.kind_of
        session = LifeRounds(source, commits, rounds, list(of_kind), kind_of, take, kept)
        _measure(session, kept, console, yes=yes)
        for commit, error in session.unusable.items():
            if not error.is_lacking:
                lost = Lived({}, {metric.name: error.reason for metric in subject.metrics})
                for one in of_kind.values():
                    one.take(commit, lost)
        filed = [figure for one in of_kind.values() for figure in one.file().figures]
        kept.finish()
    about_devices = [sentence for one in of_kind.values() for sentence in one.remarks()]
    print_sentences(console, subject.remarks, "yellow")
    print_sentences(console, about_devices)
    record.warn(console, same_code(subject.cells))
    good = tuple(figure for figure in filed if not figure.failed)
    failed = {name: why for one in of_kind.values() for name, why in one.reasons().items()}
    if not good:
        raise MeasurementFailed(f"nothing was measured: all of {', '.join(failed)} failed.")
    record.notes += [*subject.remarks, *about_devices]
    record.samples = [asdict(figure) for figure in good]
    record.results |= {
        **hosts_json(fleet),
        "device_factors": {kind: one.factors() for kind, one in of_kind.items()},
        "cells": {name: cell.to_json() for name, cell in subject.cells.items()},
        "failed": failed,
    }
    unusable = {commit: error.reason for commit, error in session.unusable.items()}
    return Measured(good, failed, unusable, record)


def _measure(session: LifeRounds, kept: Log, console: Console, *, yes: bool) -> None:
    """Measure all lives, once it is said how long that takes, and agreed to."""
    total = session.rounds * len(session.commits) * len(session.kinds)

    def agree(seconds: float) -> None:
        console.print(f"expected to take about {clock(seconds)}, as the first life did")
        if seconds > LONG_SECONDS and not yes:
            raise Refused(
                f"this would take about {clock(seconds)} hours. Add --yes to begin, or measure "
                f"less: a shorter range, fewer --rounds, or some benchmarks with --benchmark."
            )

    try:
        with Progress(console, "measuring", total, unit="lives") as bar:
            session.measure(bar.show, agree)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{kept.count} of {total} lives are measured and kept, and none is filed yet. The same "
            f"command goes on with them: {command_line()}"
        ) from None
    except MeasurementFailed:
        if kept.count:
            console.print(f"{kept.count} lives are kept; the same command goes on")
        raise
    if len(session.unusable) == len(session.commits):
        [first, *_] = session.unusable.values()
        is_lacking = all(error.is_lacking for error in session.unusable.values())
        failure = NothingMeasured if is_lacking else MeasurementFailed
        raise failure(f"nothing was measured: {first}")


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
