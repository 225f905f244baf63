"""Measuring commits, or labels, of a subject in rounds: a life of each after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asv_bench.errors import MeasurementFailed, NothingMeasured
from asv_bench.git.repository import short
from asv_bench.history.life_results import LifeResults
from asv_bench.process.samples import CommitUnusable, SampleFailed
from asv_bench.subjects.lives import Lives


@dataclass(slots=True)
class LifeRounds:
    """A session of measuring.

    Attributes
    ----------
    source
        Gives lives; the first of a commit is not measured.
    commits
        Full hashes, or labels, in their order.
    results
        Where figures go.
    unusable
        Why some commits cannot be measured.
    """

    source: Lives
    commits: Sequence[str]
    results: LifeResults
    unusable: dict[str, CommitUnusable] = field(default_factory=dict)

    def first_life(self) -> float:
        """How many seconds a life of the newest commit takes that can be measured.

        Raises
        ------
        NothingMeasured, MeasurementFailed
            If none can be; the latter where one should.
        """
        for commit in reversed(self.commits):
            readings = None
            try:
                readings = self.source.life(commit)
            except CommitUnusable as error:
                self._give_up(commit, error)
            except SampleFailed as error:
                raise MeasurementFailed(f"nothing was measured: {error}") from None
            if readings:
                return max(reading.process_s for reading in readings.values())
        reasons = [str(error) for error in self.unusable.values()]
        is_lacking = all(error.is_lacking for error in self.unusable.values())
        failure = NothingMeasured if is_lacking else MeasurementFailed
        raise failure(f"nothing was measured: {reasons[0]}")

    def measure(self, rounds: int, on_life: Callable[[int, str], None]) -> None:
        """Measure so many lives of each commit, interleaved.

        Rounds go back and forth, so that a machine that grows slower meanwhile favours no commit.
        `on_life` is told before each life how many are over, and what follows.
        """
        lives = [
            commit
            for number in range(rounds)
            for commit in (self.commits if number % 2 == 0 else reversed(self.commits))
        ]
        for number, commit in enumerate(lives):
            on_life(number, f"measuring {short(commit)}")
            if commit not in self.unusable:
                self._measure(commit)

    def _give_up(self, commit: str, error: CommitUnusable) -> None:
        self.unusable[commit] = error
        if not error.is_lacking:
            self.results.fail(commit, [metric.name for metric in self.results.subject.metrics])

    def _measure(self, commit: str) -> None:
        try:
            absences = self.source.prepare(commit)
            readings = self.source.life(commit)
        except CommitUnusable as error:
            self._give_up(commit, error)
        except SampleFailed as error:
            self.results.fail(commit, error.benchmarks)
        else:
            self.results.add(commit, readings)
            self.results.fail(
                commit, [name for name, absence in absences.items() if absence.has_failed]
            )
