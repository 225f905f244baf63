"""A session of `history` or `bench`: variants of a subject are measured in rounds, and filed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from asv_bench.errors import Interrupted, MeasurementFailed, Refused, require_packages
from asv_bench.fleet.fleet import (
    FleetOptions,
    hosts_json,
    look_around,
    machines_of,
    opened_fleet,
    record_of,
)
from asv_bench.git.repository import WORKING_TREE, short
from asv_bench.history.asv_results import Figure
from asv_bench.history.estimate import agree_to
from asv_bench.history.histories import Histories
from asv_bench.history.life_results import LifeResults
from asv_bench.history.life_rounds import LifeRounds
from asv_bench.measure.log import Log, conditions
from asv_bench.measure.software import same_code
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import RUNS, Record, command_line
from asv_bench.process.run_apart import termination_as_interrupt
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import processes_apart

KEPT = ("asv", "asv-worktree", "asv-sessions", "pages", "html")
"""Folders of histories that a session may write to."""


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
        self.runs = histories.folder / "runs" if histories.is_own else RUNS
        self.histories = histories
        require_writable(*(histories.folder / kept / "file" for kept in KEPT), self.runs / "file")
        self._results = results or histories.results
        self._command = command
        self.noun = "labels" if self.histories.labels else "commits"
        self.reasons: dict[str, str] = {}  # why commits gave no figure, where that is known
        self.record: Record  # of the session, once it is measured
        self._subject = subject
        self._fleet = fleet or FleetOptions()

    def in_ranges(self, texts: Sequence[str]) -> list[str]:
        """The commits of all ranges, newest first; without ranges all labels."""
        found = [commit.hash for text in texts for commit in self._subject.in_range(text)[::-1]]
        return list(dict.fromkeys(found)) if texts else list(self.histories.labels[::-1])

    def resolve(self, revision: str) -> str:
        """The full hash of a revision, or a label."""
        if revision == WORKING_TREE:
            raise Refused("--reference names a commit, and . is none.")
        return self._subject.resolve(revision).hash

    def measure(self, commits: Sequence[str], console: Console, *, yes: bool) -> Measured:
        """Measure lives in rounds, once the user has agreed to how long it takes.

        An interrupted session is not filed: its lives are kept, and the same command goes on with
        them.
        """
        subject = self._subject
        settings = {
            "commits": list(commits),
            "subject": subject.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "rounds": self.rounds,
            **self._place(),
        }
        console.print(subject.sentence())
        with (
            opened_fleet(self._fleet, subject, commits, console, is_for_one_kind=False) as fleet,
            termination_as_interrupt(),
            subject.lives() as source,
        ):
            self.record = record = record_of(self._command, settings, fleet)
            look_around(record, console, subject, fleet)
            here = conditions(record) if fleet is None else {}
            meaning = {**settings, **self._meaning(), **here}
            kept = Log.of_settings(meaning, self._command, noun="lives")
            print_sentences(console, kept.sentences())
            results = {
                kind: LifeResults(subject, self.histories, machine, self._results)
                for kind, machine in machines_of(record, fleet).items()
            }
            kind_of = (lambda _: record.machine.name) if fleet is None else fleet.kind_of
            session = LifeRounds(source, commits[::-1], self.rounds, results, kind_of, kept)
            self._measure(session, kept, console, yes=yes)
            filed = [figure for one in results.values() for figure in one.file().figures]
            kept.finish()
            record.results |= hosts_json(fleet)
        about_devices = [one for of_kind in results.values() for one in of_kind.remarks()]
        print_sentences(console, subject.remarks, "yellow")
        print_sentences(console, about_devices)
        record.warn(console, same_code(subject.cells))
        record.notes += [*subject.remarks, *about_devices]
        record.results["device_factors"] = {kind: one.factors() for kind, one in results.items()}
        record.results["cells"] = {name: cell.to_json() for name, cell in subject.cells.items()}
        self.reasons = {commit: error.reason for commit, error in session.unusable.items()}
        good = tuple(figure for figure in filed if not figure.failed)
        failed = {name: why for one in results.values() for name, why in one.reasons().items()}
        if not good:
            raise MeasurementFailed(f"nothing was measured: all of {', '.join(failed)} failed.")
        record.results["failed"] = failed
        record.samples = [asdict(figure) for figure in good]
        record.warn(console, process_contradictions(good))
        return Measured(good, failed)

    def write_record(self, path: Path | None) -> Path:
        """Write the record; where it is."""
        return self.record.write(path or self.runs / self.record.default_path().name)

    def _place(self) -> dict[str, str]:
        """Where results of a checkout are kept, for the record."""
        if not self.histories.is_own:
            return {}
        place = self._results.relative_to(self.histories.repository).as_posix()
        return {"results": place}

    def _meaning(self) -> dict[str, Any]:
        """What decides, beside the settings, whether lives of two sessions are alike."""
        subject = self._subject
        versions = {metric.name: subject.version(metric.name) for metric in subject.metrics}
        return {"versions": versions, "fixed": subject.fixed}

    def _measure(self, session: LifeRounds, kept: Log, console: Console, *, yes: bool) -> None:
        """Measure all rounds."""
        total = self.rounds * len(session.commits) * len(session.results)
        try:
            with Progress(console, "measuring a first life", unit="lives"):
                session.first_lives()
            agree_to(session.expected(), console, yes=yes)
            with Progress(console, "measuring", total, unit="lives") as bar:
                session.measure(
                    lambda done, what, left: bar.show(done, what, seconds_left=left),
                )
        except KeyboardInterrupt:
            raise Interrupted(
                f"{kept.count} of {total} lives are measured and kept, and none is filed yet. "
                f"The same command goes on with them: {command_line()}"
            ) from None
        except MeasurementFailed:
            if kept.count:
                console.print(f"{kept.count} lives are kept; the same command goes on")
            raise


def process_contradictions(figures: Sequence[Figure]) -> list[str]:
    """What to know where processes of one figure and commit gave values far apart."""
    unit = "s" if all(figure.unit == "seconds" for figure in figures) else ""
    samples: list[tuple[str, float]] = []
    for figure in figures:
        params = ", ".join(repr(value) for _, value in figure.series.params)
        name = figure.series.benchmark + (f"({params})" if params else "")
        samples += [(f"{name} of {short(figure.commit)}", sample) for sample in figure.samples]
    return processes_apart(samples, unit)
