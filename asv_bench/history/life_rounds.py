"""Measuring commits, labels or contests in rounds: a life of each after the other."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from asv_bench.errors import Interrupted, MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.measure.log import KeptRound
from asv_bench.measure.rounds import hand_out
from asv_bench.measure.samples import CommitUnusable, RoundSource, SampleFailed
from asv_bench.output.console import Progress
from asv_bench.output.record import command_line
from asv_bench.process.machine import MachineFacts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Session
from asv_bench.subjects.declared import DeclaredSubject


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


class Counting(Session):
    """Rounds that are all measured, or as many as there is time for; nothing is judged.

    Each kind of machine measures all commits in all rounds. The source's devices give lives at the
    same time; the first of a commit is not measured.
    """

    doing = "measuring"
    """What progress says."""
    is_of_several = False
    """Whether lives of several engines make a round: it has no name that says anything, and is
    measured again where one failed."""

    def __init__(
        self,
        command: str,
        settings: Mapping[str, Any],
        subject: DeclaredSubject,
        commits: Sequence[str],  # full hashes, labels or contests, in their order
        rounds: int,  # so many lives of each are measured
    ) -> None:
        super().__init__(command, settings, subject)
        self._commits, self._rounds = commits, rounds
        self._unusable: dict[str, CommitUnusable] = {}  # why some commits cannot be measured
        # By kind; empty before there is anything to go on with.
        self._left: dict[str, deque[Due]] = {}
        self._given: set[tuple[str, str]] = set()

    @abstractmethod
    def take(self, due: Due, lived: KeptRound) -> None:
        """Take what was measured, or kept."""

    def live(self, source: RoundSource, due: Due, device: str) -> KeptRound:
        """Measure what is due on a device."""
        absences = source.prepare(due.commit, device)
        [readings] = source.round([due.commit], [0], (), device).readings
        failed = {name: one.reason for name, one in absences.items() if one.has_failed}
        return KeptRound(due.part, (due.commit,), (0,), (dict(readings),), failed)

    def agree(self, seconds: float) -> None:
        """Hear, after the first life, how long the rest takes at most; it may raise."""

    def _machines(self) -> dict[str, MachineFacts]:
        """Those that measure, by their kinds."""
        hosts = [] if self._fleet is None else self._fleet.hosts[::-1]
        machines = [one.machine for one in hosts] or [self._record.machine]
        return {machine.name: machine for machine in machines}

    @property
    def _total(self) -> int:
        """How many lives there are in all."""
        return len(self._left) * self._rounds * len(self._commits)

    @contextmanager
    def source(self) -> Iterator[RoundSource]:
        """See `Session`; what is kept is taken over."""
        with super().source() as source:
            for kind, number in product(self._machines(), range(self._rounds)):
                left = self._left.setdefault(kind, deque())
                # The newest commit first, which most likely can be measured.
                for commit in self._commits if number % 2 else reversed(self._commits):
                    due = Due(kind, commit, number)
                    # Lives of an interrupted session are not measured again.
                    kept = self._log.next(due.part, [commit])
                    if kept is None:
                        left.append(due)
                    else:
                        self.take(due, kept)
                        self._given |= {(one.device, commit) for one in kept.readings[0].values()}
            yield source

    def measure(self, source: RoundSource) -> ExitCode:
        """Measure the lives that are left, interleaved.

        Rounds go back and forth, so that a machine that grows slower meanwhile favours no commit.
        A device is given commits that it has not measured before, as long as a round has any: from
        commits that several devices have measured, a device that always reads more is told from a
        commit that takes more.

        Raises MeasurementFailed where the first life gives no figure, and if the last device of a
        kind is lost before the end.
        """
        seconds: list[float] = []  # that lives took
        left, is_first = self._left, True

        def work(due: Due, device: str) -> KeptRound:
            begun = time.monotonic()
            try:
                return self.live(source, due, device)
            finally:
                seconds.append(time.monotonic() - begun)

        def next_due(device: str, running: Sequence[Due]) -> Due | None:
            unfinished = sum(map(len, left.values())) + len(running)
            due = self._next(device)
            if due is not None:
                what = None if self.is_of_several else f"measuring {short(due.commit)}"
                bar.show(self._total - unfinished, what)
            return due

        def take(due: Due, future: Future[KeptRound]) -> None:
            nonlocal is_first
            try:
                lived = future.result()
            except CommitUnusable as error:
                self._unusable[due.commit] = error
                return
            except SampleFailed as error:
                given = dict(error.round.readings[0] if error.round else {})
                failed = dict.fromkeys(error.benchmarks, error.reason)
                lived = KeptRound(due.part, (due.commit,), (0,), (given,), failed)
                if is_first and not given:
                    raise MeasurementFailed(f"nothing was measured: {error}") from None
            else:
                if not (self.is_of_several and lived.failed):
                    self._log.keep(lived)
            self.take(due, lived)
            if is_first:
                # A commit's first life waits for its setup, so that this is the most.
                longest = sum(map(len, left.values())) * max(seconds)
                is_first = False
                self.agree(longest / max(1, len(source.devices)))

        with Progress(self._console, self.doing, self._total, self.unit) as bar:
            hand_out(source, work, next_due, take, lambda due: left[due.kind].appendleft(due))
        for kind, dues in left.items():
            if dues:
                raise MeasurementFailed(
                    f"{len(dues)} lives on {kind} are not measured, as its last host is lost."
                )
        return ExitCode.GOOD

    def _next(self, device: str) -> Due | None:
        """What a device measures next; None where nothing is left for its kind."""
        dues = self._left[self._fleet.kind_of(device) if self._fleet else self._record.machine.name]
        while dues and dues[0].commit in self._unusable:
            dues.popleft()
        if not dues:
            return None
        is_new = (
            due
            for due in dues
            if due.round == dues[0].round
            if (device, due.commit) not in self._given and due.commit not in self._unusable
        )
        chosen = next(is_new, dues[0])
        dues.remove(chosen)
        self._given.add((device, chosen.commit))
        return chosen

    def _measured(self) -> ExitCode:
        """See `Session`; also where it was stopped before its end."""
        try:
            return super()._measured()
        except KeyboardInterrupt as error:
            if not self._left:
                raise
            self._stopped = error
            return ExitCode.INTERRUPTED if self._is_interrupted else ExitCode.GOOD

    def _so_far(self) -> str:
        return f"{self._log.count} of {self._total} {self.unit}"

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
