"""A session of `history` that measures a subject which a user declares."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from asv_bench.compare.bench_setup import termination_as_interrupt
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.commit_sources import WORKING_TREE
from asv_bench.history.asv_measuring import Measured
from asv_bench.history.estimate import Estimate, agree_to
from asv_bench.history.histories import Histories
from asv_bench.history.life_results import LifeResults
from asv_bench.history.life_rounds import LifeRounds
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import RUNS, WORKPLACE, Record
from asv_bench.packages import require_packages
from asv_bench.subjects.declared import DeclaredSubject


class SubjectSession:
    """A session of a subject that a user declares; see `CheckoutSession`."""

    hint = ""

    def __init__(self, subject: DeclaredSubject, histories: Histories, rounds: int) -> None:
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
        """Measure lives in rounds, once the user has agreed to how long it takes."""
        subject, rounds = self._subject, self.rounds
        settings = {
            "commits": list(commits),
            "subject": subject.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
            "rounds": rounds,
        }
        self.record = record = Record("history", settings)
        console.print(subject.sentence())
        record.look_around(console, subject.devices)
        lives = LifeResults(subject, self.histories, record.machine)
        with termination_as_interrupt(), subject.pairs() as source:
            session = LifeRounds(source, commits[::-1], lives)
            # A life of each commit goes unmeasured.
            expected = Estimate(len(commits), rounds + 1, session.first_life(), "as the first took")
            agree_to(expected, console, yes=yes)
            try:
                with Progress(console, "measuring", rounds * len(commits), unit="lives") as bar:
                    session.measure(rounds, bar.show)
            finally:
                filed = lives.file()
        record.notes += subject.remarks
        record.results["cells"] = {name: cell.to_json() for name, cell in subject.cells.items()}
        self.reasons = {commit: error.reason for commit, error in session.unusable.items()}
        good = tuple(figure for figure in filed.figures if not figure.failed)
        failed = sorted({one.series.benchmark for one in filed.figures if one.failed})
        if not good:
            raise MeasurementFailed(f"nothing was measured: all of {', '.join(failed)} failed.")
        return Measured(good, tuple(failed))
