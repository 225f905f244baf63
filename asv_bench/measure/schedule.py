"""Handing out work, above all rounds, to devices that work at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.rounds import Design
from asv_bench.measure.samples import Absence, DeviceLost, Round, RoundSource

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DevicePool(Generic[Request, Result]):
    """Gives each device of a source its next piece of work as soon as it is idle."""

    source: RoundSource  # has the devices
    work: Callable[[Request, str], Result]  # does one piece on a device, in a thread of its own
    at_once: int = 1  # pieces that a device does at the same time

    def run(
        self,
        next_request: Callable[[str, Sequence[Request]], Request | None],
        take: Callable[[Request, Future[Result]], None],
        put_back: Callable[[Request], None] = lambda request: None,
    ) -> None:
        """Work until no device is given anything more, and everything is taken.

        `next_request` is given an idle device and what is being done, and says what the device
        begins; None: nothing. `take` gets each piece that is done, or has failed, in the caller's
        thread; `put_back` one whose device was lost. Raises MeasurementFailed if all are lost.
        """
        running: dict[Future[Result], tuple[str, Request]] = {}
        idle = list(self.source.devices) * self.at_once
        if not idle:
            raise MeasurementFailed("there is nothing left to measure on.")
        with ThreadPoolExecutor(len(idle)) as pool:
            try:
                while True:
                    for device in list(idle):
                        request = next_request(device, [one for _, one in running.values()])
                        if request is not None:
                            idle.remove(device)
                            running[pool.submit(self.work, request, device)] = device, request
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        device, request = running.pop(future)
                        error = future.exception()
                        if isinstance(error, DeviceLost):
                            put_back(request)
                            if not (running or idle):
                                raise error
                        else:
                            idle.append(device)
                            take(request, future)
            except BaseException:
                # The threads wait for processes, and leaving the pool waits for the threads.
                self.source.stop()
                raise


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """A round to measure, and the metrics of it."""

    design: Design
    metrics: tuple[str, ...]


NextRound = Callable[[Sequence[RoundRequest]], RoundRequest | None]
"""Given the rounds that are being measured, says which to begin now; None: none."""
TakeRound = Callable[[RoundRequest, "Future[Round]"], None]
"""Called in the caller's thread with each round that is measured, or has failed."""


class Schedule:
    """Hands out rounds to the devices of a source, on each in orders of its own (`Design`)."""

    def __init__(self, source: RoundSource) -> None:
        self._source = source
        # Devices start in turn with either order, so that few rounds on many are balanced too.
        self._numbers = {device: 2 * index for index, device in enumerate(source.devices)}

    def prepare(self, cells: Sequence[str]) -> dict[str, Mapping[str, Absence]]:
        """Prepare cells, as many at the same time as the source can; see `RoundSource`."""
        left = deque(dict.fromkeys(cells))
        done: dict[str, Future[Mapping[str, Absence]]] = {}
        at_once = len(left) if self._source.prepares_together else 1
        pool = DevicePool(self._source, self._source.prepare, at_once)
        # A cell that cannot be measured is raised behind the pool, which would stop the source.
        pool.run(lambda *_: left.popleft() if left else None, done.__setitem__, left.appendleft)
        return {cell: done[cell].result() for cell in dict.fromkeys(cells)}

    def measure(self, next_round: NextRound, take: TakeRound) -> None:
        """Measure until `next_round` wants nothing more and every round is taken.

        The round of a device that is lost is not taken: `next_round` is asked for it again.
        """
        pool = DevicePool(self._source, self._round)
        pool.run(lambda device, running: next_round(running), take)

    def _round(self, request: RoundRequest, device: str) -> Round:
        # A device measures one round at a time, so only one thread counts its rounds.
        number = self._numbers[device]
        self._numbers[device] += 1
        order = request.design.order(number)
        return self._source.round(
            request.design.cells, order, metrics=request.metrics, device=device
        )
