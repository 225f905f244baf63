"""Measuring commits, labels or contests in rounds: a life of each after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.measure.log import KeptRound, Log
from asv_bench.measure.rounds import hand_out
from asv_bench.measure.samples import CommitUnusable, Reading, Round, RoundSource, SampleFailed


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

    readings: dict[str, Reading]
    failed: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class LifeRounds:
    """A session of measuring, in which each kind of machine measures all commits in all rounds.

    The source's devices give lives at the same time; the first of a commit is not measured.
    """

    source: RoundSource
    commits: Sequence[str]  # full hashes, labels or contests, in their order
    rounds: int  # so many lives of each are measured
    takers: Mapping[str, Callable[[Due, Lived], None]]  # of what each kind of machine measured
    kind_of: Callable[[str], str]  # the kind of the machine that a device belongs to
    kept: Log  # lives of an interrupted session are not measured again
    live: Callable[[Due, str], Lived] | None = None  # measures on a device; None: by the source
    # Why some commits cannot be measured.
    unusable: dict[str, CommitUnusable] = field(init=False, default_factory=dict)
    _left: dict[str, deque[Due]] = field(init=False, default_factory=dict)
    _given: set[tuple[str, str]] = field(init=False, default_factory=set)
    _seconds: list[float] = field(init=False, default_factory=list)  # that lives took

    def __post_init__(self) -> None:
        for kind, number in product(self.takers, range(self.rounds)):
            left = self._left.setdefault(kind, deque())
            # The newest commit first, which most likely can be measured.
            for commit in self.commits if number % 2 else reversed(self.commits):
                due = Due(kind, commit, number)
                kept = self.kept.next(due.part, [commit])
                if kept is None:
                    left.append(due)
                else:
                    self.takers[kind](due, Lived(kept.readings[0], kept.failed, kept.facts))
                    self._given |= {(one.device, commit) for one in kept.readings[0].values()}

    def measure(
        self, on_life: Callable[[int, str], None], agree: Callable[[float], None] | None = None
    ) -> None:
        """Measure the lives that are left, interleaved.

        Rounds go back and forth, so that a machine that grows slower meanwhile favours no commit.
        A device is given commits that it has not measured before, as long as a round has any: from
        commits that several devices have measured, a device that always reads more is told from a
        commit that takes more.

        `on_life` is told before each life how many are over, and what follows; `agree`, which may
        raise, after the first how long the rest takes at most. Raises MeasurementFailed where that
        first one gives no figure, and if the last device of a kind is lost before the end.
        """
        total = len(self.takers) * self.rounds * len(self.commits)
        is_agreed = agree is None

        def next_due(device: str, running: Sequence[Due]) -> Due | None:
            unfinished = sum(map(len, self._left.values())) + len(running)
            due = self._next(device)
            if due is not None:
                on_life(total - unfinished, f"measuring {short(due.commit)}")
            return due

        def take(due: Due, future: Future[Lived]) -> None:
            nonlocal is_agreed
            try:
                lived = future.result()
            except CommitUnusable as error:
                self.unusable[due.commit] = error
                return
            except SampleFailed as error:
                lived = Lived(_readings(error.round), dict.fromkeys(error.benchmarks, error.reason))
                if not (is_agreed or lived.readings):
                    raise MeasurementFailed(f"nothing was measured: {error}") from None
            else:
                told = (lived.readings,), lived.failed, lived.facts
                self.kept.keep(KeptRound(due.part, (due.commit,), (0,), *told))
            self.takers[due.kind](due, lived)
            if not is_agreed and agree is not None:
                is_agreed = True
                # A commit's first life waits for its setup, so that this is the most.
                seconds = sum(map(len, self._left.values())) * max(self._seconds)
                agree(seconds / max(1, len(self.source.devices)))

        work, left = self.live or self._live, self._left
        hand_out(self.source, work, next_due, take, lambda due: left[due.kind].appendleft(due))
        for kind, dues in self._left.items():
            if dues:
                raise MeasurementFailed(
                    f"{len(dues)} lives on {kind} are not measured, as its last host is lost."
                )

    def _next(self, device: str) -> Due | None:
        """What a device measures next; None where nothing is left for its kind."""
        dues = self._left.get(self.kind_of(device), deque())
        while dues and dues[0].commit in self.unusable:
            dues.popleft()
        if not dues:
            return None
        is_new = (
            due
            for due in dues
            if due.round == dues[0].round
            if (device, due.commit) not in self._given and due.commit not in self.unusable
        )
        chosen = next(is_new, dues[0])
        dues.remove(chosen)
        self._given.add((device, chosen.commit))
        return chosen

    def _live(self, due: Due, device: str) -> Lived:
        begun = time.monotonic()
        try:
            absences = self.source.prepare(due.commit, device)
            readings = _readings(self.source.round([due.commit], device=device))
        finally:
            self._seconds.append(time.monotonic() - begun)
        failed = {name: one.reason for name, one in absences.items() if one.has_failed}
        return Lived(readings, failed)


def _readings(measured: Round | None) -> dict[str, Reading]:
    """Those of the one life of a round; none where there is none."""
    return dict(measured.readings[0]) if measured else {}
