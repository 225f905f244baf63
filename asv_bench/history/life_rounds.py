"""Measuring commits, labels or contests in rounds: a life of each after the other."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product

from asv_bench.errors import Interrupted, MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.measure.log import KeptRound, Log
from asv_bench.measure.rounds import hand_out
from asv_bench.measure.samples import CommitUnusable, RoundSource, SampleFailed
from asv_bench.output.console import Progress
from asv_bench.output.record import command_line
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Session


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


@dataclass(slots=True)
class LifeRounds:
    """A session of measuring, in which each kind of machine measures all commits in all rounds.

    The source's devices give lives at the same time; the first of a commit is not measured.
    """

    source: RoundSource
    commits: Sequence[str]  # full hashes, labels or contests, in their order
    rounds: int  # so many lives of each are measured
    takers: Mapping[str, Callable[[Due, KeptRound], None]]  # of what each kind of machine measured
    kind_of: Callable[[str], str]  # the kind of the machine that a device belongs to
    kept: Log  # lives of an interrupted session are not measured again
    live: Callable[[Due, str], KeptRound] | None = None  # measures on a device; None: by the source
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
                    self.takers[kind](due, kept)
                    self._given |= {(one.device, commit) for one in kept.readings[0].values()}

    @property
    def total(self) -> int:
        """How many lives there are in all."""
        return len(self.takers) * self.rounds * len(self.commits)

    def measure(
        self,
        on_life: Callable[[int, str | None], None],
        agree: Callable[[float], None] | None = None,
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

        def next_due(device: str, running: Sequence[Due]) -> Due | None:
            unfinished = sum(map(len, self._left.values())) + len(running)
            due = self._next(device)
            if due is not None:
                # Contests have no names that say anything.
                what = None if self.live else f"measuring {short(due.commit)}"
                on_life(self.total - unfinished, what)
            return due

        def take(due: Due, future: Future[KeptRound]) -> None:
            nonlocal agree
            try:
                lived = future.result()
            except CommitUnusable as error:
                self.unusable[due.commit] = error
                return
            except SampleFailed as error:
                given = dict(error.round.readings[0] if error.round else {})
                failed = dict.fromkeys(error.benchmarks, error.reason)
                lived = KeptRound(due.part, (due.commit,), (0,), (given,), failed)
                if agree is not None and not given:
                    raise MeasurementFailed(f"nothing was measured: {error}") from None
            else:
                # A contest in which an engine failed is measured again.
                if self.live is None or not lived.failed:
                    self.kept.keep(lived)
            self.takers[due.kind](due, lived)
            if agree is not None:
                # A commit's first life waits for its setup, so that this is the most.
                seconds = sum(map(len, self._left.values())) * max(self._seconds)
                ask, agree = agree, None
                ask(seconds / max(1, len(self.source.devices)))

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

    def _live(self, due: Due, device: str) -> KeptRound:
        begun = time.monotonic()
        try:
            absences = self.source.prepare(due.commit, device)
            [readings] = self.source.round([due.commit], [0], (), device).readings
        finally:
            self._seconds.append(time.monotonic() - begun)
        failed = {name: one.reason for name, one in absences.items() if one.has_failed}
        return KeptRound(due.part, (due.commit,), (0,), (dict(readings),), failed)


class Counting(Session):
    """Rounds that are all measured, or as many as there is time for; nothing is judged."""

    doing = "measuring"
    """What progress says."""
    agree: Callable[[float], None] | None = None
    """See `LifeRounds.measure`."""
    _lives: LifeRounds

    @abstractmethod
    def lives(self, source: RoundSource) -> LifeRounds:
        """What is to be measured; what is kept is taken over."""

    @contextmanager
    def source(self) -> Iterator[RoundSource]:
        with super().source() as source:
            self._lives = self.lives(source)
            yield source

    def measure(self, source: RoundSource) -> ExitCode:
        with Progress(self._console, self.doing, self._lives.total, self.unit) as bar:
            self._lives.measure(bar.show, self.agree)
        return ExitCode.GOOD

    def _measured(self) -> ExitCode:
        """See `Session`; also where it was stopped before its end."""
        try:
            return super()._measured()
        except KeyboardInterrupt as error:
            if not hasattr(self, "_lives"):  # before there was anything to go on with
                raise
            self._stopped = error
            return ExitCode.INTERRUPTED if self._is_interrupted else ExitCode.GOOD

    def _so_far(self) -> str:
        return f"{self._log.count} of {self._lives.total} {self.unit}"

    def _late(self, filed: str = "") -> list[str]:
        """A sentence that the time was up, where it was."""
        if self._stopped is None or self._is_interrupted:
            return []
        after = f"time is up ({self._how.limit.whose}) after {self._so_far()}{filed}"
        return [f"{after}; the same command goes on with them."]

    def _interruption(self, kept: str) -> Interrupted:
        """What to raise after Ctrl-C."""
        again = f"The same command goes on with them: {command_line('--fresh')}"
        return Interrupted(f"{self._so_far()} are {kept}. {again}")
