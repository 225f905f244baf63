"""Measuring commits, labels or contests in rounds: a life of each after the other."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol

from asv_bench.errors import MeasurementFailed, NothingMeasured
from asv_bench.git.repository import short
from asv_bench.history.estimate import Estimate, counted
from asv_bench.measure.log import KeptRound, Log
from asv_bench.measure.samples import CommitUnusable, Reading, Round, RoundSource, SampleFailed
from asv_bench.measure.schedule import DevicePool


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be measured: on which kind of machine, of which commit or label, in which round.

    Of peers it is a life of each engine of the contest that `commit` names.
    """

    kind: str
    commit: str
    round: int

    @property
    def part(self) -> str:
        """What it is called in the log."""
        return f"{self.kind}, round {self.round}"


@dataclass(frozen=True, slots=True)
class Lived:
    """What a life gave by metric, and why it did not give others that it should have given.

    Of peers all is by engine, and `facts` are what else its life told.
    """

    readings: Mapping[str, Reading]
    failed: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max((reading.process_s for reading in self.readings.values()), default=0.0)


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


class LivesTaken(Protocol):
    """Where goes what was measured on one kind of machine."""

    def take(self, due: Due, lived: Lived) -> None:
        """Add what came of it."""
        ...

    def give_up(self, commit: str, reason: str) -> None:
        """Note that there will be nothing of a commit."""
        ...


@dataclass(slots=True)
class LifeRounds:
    """A session of measuring, in which each kind of machine measures all commits in all rounds."""

    # Its devices give lives at the same time; the first of a commit is not measured.
    source: RoundSource
    commits: Sequence[str]  # full hashes, labels or contests, in their order
    rounds: int  # so many lives of each are measured
    results: Mapping[str, LivesTaken]  # where figures go, by the kind of machine
    kind_of: Callable[[str], str]  # the kind of the machine that a device belongs to
    # Lives of an interrupted session are not measured again; None: nothing is kept.
    kept: Log | None = None
    live: Callable[[Due, str], Lived] | None = None  # measures on a device; None: by the source
    # Why some commits cannot be measured.
    unusable: dict[str, CommitUnusable] = field(init=False, default_factory=dict)
    pace: Pace = field(init=False, default_factory=Pace)
    _left: dict[str, deque[Due]] = field(init=False)
    _given: set[tuple[str, str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._left = {
            kind: deque(due for due in self._dues(kind) if not self._restore(due))
            for kind in self.results
        }

    def first_lives(self) -> None:
        """Measure a life on each device, from which `pace` tells how long the rest takes.

        If no commit can be measured it raises NothingMeasured, or MeasurementFailed if one should.
        """
        begun: set[str] = set()

        def next_due(device: str, running: Sequence[Due]) -> Due | None:
            return None if device in begun else self._next(device)

        def take(due: Due, future: Future[Lived]) -> None:
            if isinstance(error := future.exception(), SampleFailed) and not _readings(error.round):
                raise MeasurementFailed(f"nothing was measured: {error}") from None
            self._take(due, future)
            if error is None and (readings := future.result().readings):
                begun.add(next(iter(readings.values())).device)

        self._run(next_due, take)
        if self.pace.lives:
            return
        reasons = [str(error) for error in self.unusable.values()]
        is_lacking = all(error.is_lacking for error in self.unusable.values())
        failure = NothingMeasured if is_lacking else MeasurementFailed
        raise failure(f"nothing was measured: {reasons[0]}")

    def seconds_left(self, running: Sequence[Due] = ()) -> float:
        """How long it takes to measure what is left, and what is running."""
        dues = [*running, *(due for dues in self._left.values() for due in dues)]
        dues = [due for due in dues if due.commit not in self.unusable]
        unprepared = {due.commit for due in dues} - self.pace.prepared.keys()
        seconds = self.pace.of_commits(len(unprepared)) + self.pace.of_lives(len(dues))
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
        follows, and how many seconds the rest takes. Raises MeasurementFailed if the last device of
        a kind is lost before the end.
        """
        total = len(self.results) * self.rounds * len(self.commits)

        def next_due(device: str, running: Sequence[Due]) -> Due | None:
            unfinished = sum(map(len, self._left.values())) + len(running)
            due = self._next(device)
            if due is not None:
                left = self.seconds_left([*running, due])
                on_life(total - unfinished, f"measuring {short(due.commit)}", left)
            return due

        self._run(next_due, self._take)
        for kind, dues in self._left.items():
            if dues:
                raise MeasurementFailed(
                    f"{len(dues)} lives on {kind} are not measured, as its last host is lost."
                )

    def _run(
        self,
        next_due: Callable[[str, Sequence[Due]], Due | None],
        take: Callable[[Due, Future[Lived]], None],
    ) -> None:
        pool = DevicePool(self.source, self.live or self._measure)
        pool.run(next_due, take, lambda due: self._left[due.kind].appendleft(due))

    def _next(self, device: str) -> Due | None:
        """What a device measures next; None where nothing is left for its kind."""
        dues = self._left.get(self.kind_of(device), deque())
        while dues and dues[0].commit in self.unusable:
            dues.popleft()
        if not dues:
            return None
        of_round = takewhile(lambda due: due.round == dues[0].round, dues)
        is_new = (
            due
            for due in of_round
            if (device, due.commit) not in self._given and due.commit not in self.unusable
        )
        chosen = next(is_new, dues[0])
        dues.remove(chosen)
        self._given.add((device, chosen.commit))
        return chosen

    def _dues(self, kind: str) -> Iterator[Due]:
        """In their order: the newest commit first, which most likely can be measured."""
        for number in range(self.rounds):
            for commit in self.commits if number % 2 else reversed(self.commits):
                yield Due(kind, commit, number)

    def _restore(self, due: Due) -> bool:
        """Take a life from those that were kept, if it is there."""
        kept = None if self.kept is None else self.kept.next(due.part, [due.commit])
        if kept is not None:
            lived = Lived(kept.readings[0], kept.failed, kept.facts)
            self._add(due, lived)
            self._given |= {(one.device, due.commit) for one in lived.readings.values()}
        return kept is not None

    def _add(self, due: Due, lived: Lived) -> None:
        if lived.readings:
            self.pace.lives.append(lived.seconds)
        self.results[due.kind].take(due, lived)

    def _give_up(self, commit: str, error: CommitUnusable) -> None:
        self.unusable[commit] = error
        if not error.is_lacking:
            for results in self.results.values():
                results.give_up(commit, error.reason)

    def _measure(self, due: Due, device: str) -> Lived:
        begun = time.monotonic()
        absences = self.source.prepare(due.commit, device)
        self.pace.prepared.setdefault(due.commit, time.monotonic() - begun)
        readings = _readings(self.source.round([due.commit], device=device))
        failed = {name: one.reason for name, one in absences.items() if one.has_failed}
        return Lived(readings, failed)

    def _take(self, due: Due, future: Future[Lived]) -> None:
        try:
            lived = future.result()
        except CommitUnusable as error:
            self._give_up(due.commit, error)
        except SampleFailed as error:
            failed = dict.fromkeys(error.benchmarks, error.reason)
            self._add(due, Lived(_readings(error.round), failed))
        else:
            self._add(due, lived)
            if self.kept is not None:
                readings, failed = dict(lived.readings), dict(lived.failed)
                entry = KeptRound(
                    due.part, (due.commit,), (0,), (readings,), failed, dict(lived.facts)
                )
                self.kept.keep(entry)


def _readings(measured: Round | None) -> Mapping[str, Reading]:
    """Those of the one life of a round; none where there is none."""
    return measured.readings[0] if measured else {}
