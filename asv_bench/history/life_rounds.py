"""Measuring commits, or labels, of a subject in rounds: a life of each after the other."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile

from asv_bench.errors import MeasurementFailed, NothingMeasured
from asv_bench.git.repository import short
from asv_bench.history.estimate import Estimate, counted
from asv_bench.history.kept_lives import Cell, KeptLives, Lived
from asv_bench.history.life_results import LifeResults
from asv_bench.process.device_pool import DevicePool
from asv_bench.process.samples import CommitUnusable, LifeSource, SampleFailed


@dataclass(slots=True)
class Pace:
    """Seconds that preparing commits took, by commit, and that lives took."""

    prepared: dict[str, float] = field(default_factory=dict)
    lives: list[float] = field(default_factory=list)

    def of_commits(self, count: int) -> float:
        """How long preparing so many takes."""
        return count * statistics.fmean(self.prepared.values()) if self.prepared else 0.0

    def of_lives(self, count: int) -> float:
        """How long so many lives take."""
        return count * statistics.fmean(self.lives) if self.lives else 0.0


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
    rounds
        So many lives of each commit are measured.
    results
        Where figures go, by the kind of machine.
    kind_of
        The kind of the machine that a device belongs to.
    kept
        The lives of an interrupted session, which are not measured again; None: nothing is kept.
    unusable
        Why some commits cannot be measured.
    pace
        How long preparing a commit takes, and a life.
    """

    source: LifeSource
    commits: Sequence[str]
    rounds: int
    results: Mapping[str, LifeResults]
    kind_of: Callable[[str], str]
    kept: KeptLives | None = None
    unusable: dict[str, CommitUnusable] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    _left: dict[str, deque[Cell]] = field(init=False)
    _given: set[tuple[str, str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._left = {
            kind: deque(cell for cell in self._cells(kind) if not self._restore(cell))
            for kind in self.results
        }

    def first_lives(self) -> None:
        """Measure a life on each device, from which `pace` tells how long the rest takes.

        Raises
        ------
        NothingMeasured, MeasurementFailed
            If no commit can be measured; the latter where one should.
        """
        begun: set[str] = set()

        def next_cell(device: str, running: Sequence[Cell]) -> Cell | None:
            return None if device in begun else self._next(device)

        def take(cell: Cell, future: Future[Lived]) -> None:
            if isinstance(error := future.exception(), SampleFailed) and not error.readings:
                raise MeasurementFailed(f"nothing was measured: {error}") from None
            self._take(cell, future)
            if error is None and (readings := future.result().readings):
                begun.add(next(iter(readings.values())).device)

        self._run(next_cell, take)
        if self.pace.lives:
            return
        reasons = [str(error) for error in self.unusable.values()]
        is_lacking = all(error.is_lacking for error in self.unusable.values())
        failure = NothingMeasured if is_lacking else MeasurementFailed
        raise failure(f"nothing was measured: {reasons[0]}")

    def seconds_left(self, running: Sequence[Cell] = ()) -> float:
        """How long it takes to measure what is left, and what is running."""
        cells = [*running, *(cell for cells in self._left.values() for cell in cells)]
        cells = [cell for cell in cells if cell.commit not in self.unusable]
        unprepared = {cell.commit for cell in cells} - self.pace.prepared.keys()
        seconds = self.pace.of_commits(len(unprepared)) + self.pace.of_lives(len(cells))
        return seconds / max(1, len(self.source.devices))

    def expected(self) -> Estimate:
        """How long it takes to measure what is left, for the user to agree to."""
        pace, kinds = self.pace, len(self.results)
        lives = f"{counted(len(self.commits) * kinds, 'commit')} x {counted(self.rounds, 'round')}"
        at_once = f", {len(self.source.devices)} at once" if len(self.source.devices) > 1 else ""
        each = (
            f"{pace.of_lives(1):.2g} s each and {pace.of_commits(1):.2g} s before a commit's first"
        )
        return Estimate(self.seconds_left(), f"{lives}, {each}{at_once}, as the first took")

    def measure(self, on_life: Callable[[int, str, float], None]) -> None:
        """Measure the lives that are left, interleaved.

        Rounds go back and forth, so that a machine that grows slower meanwhile favours no commit.
        A device is given commits that it has not measured before, as long as a round has any: from
        commits that several devices have measured, a device that always reads more is told from a
        commit that takes more. `on_life` is told before each life how many are over, what
        follows, and how many seconds the rest takes.

        Raises
        ------
        MeasurementFailed
            If the last device of a kind is lost before the end.
        """
        total = len(self.results) * self.rounds * len(self.commits)

        def next_cell(device: str, running: Sequence[Cell]) -> Cell | None:
            unfinished = sum(map(len, self._left.values())) + len(running)
            cell = self._next(device)
            if cell is not None:
                left = self.seconds_left([*running, cell])
                on_life(total - unfinished, f"measuring {short(cell.commit)}", left)
            return cell

        self._run(next_cell, self._take)
        for kind, cells in self._left.items():
            if cells:
                raise MeasurementFailed(
                    f"{len(cells)} lives on {kind} are not measured, as its last host is lost."
                )

    def _run(
        self,
        next_cell: Callable[[str, Sequence[Cell]], Cell | None],
        take: Callable[[Cell, Future[Lived]], None],
    ) -> None:
        pool = DevicePool(self.source, self._measure)
        pool.run(next_cell, take, lambda cell: self._left[cell.kind].appendleft(cell))

    def _next(self, device: str) -> Cell | None:
        """What a device measures next; None where nothing is left for its kind."""
        cells = self._left.get(self.kind_of(device), deque())
        while cells and cells[0].commit in self.unusable:
            cells.popleft()
        if not cells:
            return None
        of_round = takewhile(lambda cell: cell.round == cells[0].round, cells)
        is_new = (
            cell
            for cell in of_round
            if (device, cell.commit) not in self._given and cell.commit not in self.unusable
        )
        chosen = next(is_new, cells[0])
        cells.remove(chosen)
        self._given.add((device, chosen.commit))
        return chosen

    def _cells(self, kind: str) -> Iterator[Cell]:
        """In their order: the newest commit first, which most likely can be measured."""
        for number in range(self.rounds):
            for commit in self.commits if number % 2 else reversed(self.commits):
                yield Cell(kind, commit, number)

    def _restore(self, cell: Cell) -> bool:
        """Take a life from those that were kept, if it is there."""
        lived = None if self.kept is None else self.kept.lives.get(cell)
        if lived is not None:
            self._add(cell, lived)
            self._given |= {(one.device, cell.commit) for one in lived.readings.values()}
        return lived is not None

    def _add(self, cell: Cell, lived: Lived) -> None:
        if lived.readings:
            self.pace.lives.append(lived.seconds)
        results = self.results[cell.kind]
        results.add(cell.commit, lived.readings)
        results.fail(cell.commit, lived.failed)

    def _give_up(self, commit: str, error: CommitUnusable) -> None:
        self.unusable[commit] = error
        if not error.is_lacking:
            for results in self.results.values():
                metrics = [metric.name for metric in results.subject.metrics]
                results.fail(commit, dict.fromkeys(metrics, error.reason))

    def _measure(self, cell: Cell, device: str) -> Lived:
        begun = time.monotonic()
        absences = self.source.prepare(cell.commit, device)
        self.pace.prepared.setdefault(cell.commit, time.monotonic() - begun)
        readings = self.source.life(cell.commit, device=device)
        failed = {name: one.reason for name, one in absences.items() if one.has_failed}
        return Lived(readings, failed)

    def _take(self, cell: Cell, future: Future[Lived]) -> None:
        try:
            lived = future.result()
        except CommitUnusable as error:
            self._give_up(cell.commit, error)
        except SampleFailed as error:
            failed = dict.fromkeys(error.benchmarks, error.reason)
            self._add(cell, Lived(error.readings, failed))
        else:
            self._add(cell, lived)
            if self.kept is not None:
                self.kept.keep(cell, lived)
