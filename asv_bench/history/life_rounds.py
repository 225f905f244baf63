"""Measuring commits, or labels, of a subject in rounds: a life of each after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from asv_bench.errors import MeasurementFailed, NothingMeasured
from asv_bench.git.repository import short
from asv_bench.history.kept_lives import Cell, KeptLives, Lived
from asv_bench.history.life_results import LifeResults
from asv_bench.process.device_pool import DevicePool
from asv_bench.process.samples import CommitUnusable, LifeSource, SampleFailed


@dataclass(slots=True)
class LifeRounds:
    """A session of measuring.

    Each kind of machine measures all commits in all rounds.

    Attributes
    ----------
    source
        Gives lives, on each of its devices at the same time; the first of a commit is not measured.
    commits
        Full hashes, or labels, in their order.
    results
        Where figures go, by the kind of machine.
    kind_of
        The kind of the machine that a device belongs to.
    kept
        The lives of an interrupted session, which are not measured again; None: nothing is kept.
    unusable
        Why some commits cannot be measured.
    """

    source: LifeSource
    commits: Sequence[str]
    results: Mapping[str, LifeResults]
    kind_of: Callable[[str], str]
    kept: KeptLives | None = None
    unusable: dict[str, CommitUnusable] = field(default_factory=dict)

    def first_life(self) -> float:
        """How many seconds a life of the newest commit takes that can be measured.

        Meanwhile every other device prepares one of the first commits.

        Raises
        ------
        NothingMeasured, MeasurementFailed
            If none can be; the latter where one should.
        """
        others = list(zip(self.source.devices, self.commits, strict=False))[1:]
        with ThreadPoolExecutor(len(others) or 1) as pool:
            for device, commit in others:
                # What fails is asked for again when it is to be measured.
                pool.submit(self.source.prepare, commit, device)
            try:
                return self._first_life()
            except BaseException:
                # Leaving the pool waits for its threads, and these for processes.
                self.source.stop()
                raise

    def _first_life(self) -> float:
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
        """Measure so many lives of each commit on each kind of machine, interleaved.

        Rounds go back and forth, so that a machine that grows slower meanwhile favours no commit.
        `on_life` is told before each life how many are over, and what follows.

        Raises
        ------
        MeasurementFailed
            If the last device of a kind is lost before the end.
        """
        left = {kind: deque(self._cells(kind, rounds)) for kind in self.results}
        over = sum(map(self._restore, [cell for cells in left.values() for cell in cells]))
        left = {
            kind: deque(cell for cell in cells if self.kept is None or cell not in self.kept.lives)
            for kind, cells in left.items()
        }

        def next_cell(device: str, running: Sequence[Cell]) -> Cell | None:
            cells = left.get(self.kind_of(device))
            while cells and cells[0].commit in self.unusable:
                cells.popleft()
            if not cells:
                return None
            unfinished = sum(map(len, left.values())) + len(running)
            on_life(over + total - unfinished, f"measuring {short(cells[0].commit)}")
            return cells.popleft()

        total = sum(map(len, left.values()))
        pool = DevicePool(self.source, self._measure)
        pool.run(next_cell, self._take, lambda cell: left[cell.kind].appendleft(cell))
        for kind, cells in left.items():
            if cells:
                raise MeasurementFailed(
                    f"{len(cells)} lives on {kind} are not measured, as its last host is lost."
                )

    def _cells(self, kind: str, rounds: int) -> Iterator[Cell]:
        for number in range(rounds):
            for commit in self.commits if number % 2 == 0 else reversed(self.commits):
                yield Cell(kind, commit, number)

    def _restore(self, cell: Cell) -> bool:
        """Take a life from those that were kept, if it is there."""
        lived = None if self.kept is None else self.kept.lives.get(cell)
        if lived is not None:
            self._add(cell, lived)
        return lived is not None

    def _add(self, cell: Cell, lived: Lived) -> None:
        results = self.results[cell.kind]
        results.add(cell.commit, lived.readings)
        results.fail(cell.commit, lived.failed)

    def _give_up(self, commit: str, error: CommitUnusable) -> None:
        self.unusable[commit] = error
        if not error.is_lacking:
            for results in self.results.values():
                results.fail(commit, [metric.name for metric in results.subject.metrics])

    def _measure(self, cell: Cell, device: str) -> Lived:
        absences = self.source.prepare(cell.commit, device)
        readings = self.source.life(cell.commit, device=device)
        failed = tuple(name for name, absence in absences.items() if absence.has_failed)
        return Lived(readings, failed)

    def _take(self, cell: Cell, future: Future[Lived]) -> None:
        try:
            lived = future.result()
        except CommitUnusable as error:
            self._give_up(cell.commit, error)
        except SampleFailed as error:
            self.results[cell.kind].fail(cell.commit, error.benchmarks)
        else:
            self._add(cell, lived)
            if self.kept is not None:
                self.kept.keep(cell, lived)
