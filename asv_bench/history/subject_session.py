"""A session of `history` that measures a subject which a user declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from asv_bench.compare.bench_setup import termination_as_interrupt
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.fleet.fleet_records import hosts_json, look_around, machines_of, record_of
from asv_bench.fleet.opening import FleetOptions, opened_fleet
from asv_bench.git.commit_sources import WORKING_TREE
from asv_bench.history.asv_measuring import Measured
from asv_bench.history.asv_results import Figure
from asv_bench.history.estimate import Estimate, agree_to
from asv_bench.history.histories import Histories
from asv_bench.history.kept_lives import KeptLives
from asv_bench.history.life_results import LifeResults
from asv_bench.history.life_rounds import LifeRounds
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import RUNS, WORKPLACE, Record
from asv_bench.packages import require_packages
from asv_bench.subjects.declared import DeclaredSubject


class SubjectSession:
    """A session of a subject that a user declares; see `CheckoutSession`."""

    hint = ""

    def __init__(
        self,
        subject: DeclaredSubject,
        histories: Histories,
        rounds: int,
        fleet: FleetOptions | None = None,
    ) -> None:
        require_packages("asv", "jinja2")
        self.rounds = rounds
        self.lock = WORKPLACE
        self.runs = RUNS
        self.histories = histories
        require_writable(self.histories.folder / "file")
        self.noun = "labels" if self.histories.labels else "commits"
        self.reasons: dict[str, str] = {}
        self.record: Record
        self._subject = subject
        self._fleet = fleet or FleetOptions()

    def in_ranges(self, texts: Sequence[str]) -> list[str]:
        """The commits of all ranges, newest first; without ranges all labels."""
        found = [commit.hash for text in texts for commit in self._subject.in_range(text)[::-1]]
        return list(dict.fromkeys(found)) if texts else list(self.histories.labels[::-1])

    def first_of_each_run(self, commits: list[str]) -> list[str]:
        """Those that differ in what is measured from the one before, and the oldest."""
        return [
            commit
            for commit, before in zip(commits, [*commits[1:], None], strict=True)
            if before is None or not self._subject.are_same(before, commit)
        ]

    def resolve(self, revision: str) -> str:
        """The full hash of a revision, or a label."""
        if revision == WORKING_TREE:
            raise Refused("--reference names a commit, and . is none.")
        return self._subject.resolve(revision).hash

    def measure(self, commits: Sequence[str], console: Console, *, yes: bool) -> Measured:
        """Measure lives in rounds, once the user has agreed to how long it takes.

        An interrupted session is filed as far as it came. On a fleet it is not: its lives are kept,
        and the same command goes on with them.
        """
        subject = self._subject
        settings = {
            "commits": list(commits),
            "subject": subject.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "rounds": self.rounds,
        }
        console.print(subject.sentence())
        with (
            opened_fleet(self._fleet, subject, commits, console, is_for_one_kind=False) as fleet,
            termination_as_interrupt(),
            subject.pairs() as source,
        ):
            self.record = record = record_of("history", settings, fleet)
            look_around(record, console, subject, fleet)
            kept = None if fleet is None else KeptLives.of_settings({**settings, **self._meaning()})
            print_sentences(console, kept.sentences() if kept else [])
            results = {
                kind: LifeResults(subject, self.histories, machine)
                for kind, machine in machines_of(record, fleet).items()
            }
            kind_of = (lambda _: record.machine.name) if fleet is None else fleet.kind_of
            session = LifeRounds(source, commits[::-1], self.rounds, results, kind_of, kept)
            filed = self._measure(session, console, is_kept=kept is not None, yes=yes)
            if kept is not None:
                kept.remove()
            record.results |= hosts_json(fleet)
        about_devices = [one for of_kind in results.values() for one in of_kind.remarks()]
        print_sentences(console, about_devices)
        record.notes += [*subject.remarks, *about_devices]
        record.results["device_factors"] = {kind: one.factors() for kind, one in results.items()}
        record.results["cells"] = {name: cell.to_json() for name, cell in subject.cells.items()}
        self.reasons = {commit: error.reason for commit, error in session.unusable.items()}
        good = tuple(figure for figure in filed if not figure.failed)
        failed = sorted({one.series.benchmark for one in filed if one.failed})
        if not good:
            raise MeasurementFailed(f"nothing was measured: all of {', '.join(failed)} failed.")
        return Measured(good, tuple(failed))

    def _meaning(self) -> dict[str, Any]:
        """What decides, beside the settings, whether lives of two sessions are alike."""
        subject = self._subject
        versions = {metric.name: subject.version(metric.name) for metric in subject.metrics}
        return {"versions": versions, "fixed": subject.fixed}

    def _measure(
        self, session: LifeRounds, console: Console, *, is_kept: bool, yes: bool
    ) -> list[Figure]:
        """Measure all rounds and file them; returns the figures."""
        count, kinds, at_once = len(session.commits), len(session.results), session.source.devices
        # A life of each commit goes unmeasured.
        expected = Estimate(
            count * kinds,
            self.rounds + 1,
            session.first_lives(),
            "as the first took",
            len(at_once),
        )
        agree_to(expected, console, yes=yes)
        is_over = False
        try:
            total = self.rounds * count * kinds
            with Progress(console, "measuring", total, unit="lives") as bar:
                session.measure(bar.show)
            is_over = True
        finally:
            if session.kept is not None and not is_over:
                lives = len(session.kept.lives)
                console.print(f"{lives} lives are kept; the same command goes on with them")
            filed = [
                figure
                for results in session.results.values()
                if is_over or not is_kept
                for figure in results.file().figures
            ]
        return filed
