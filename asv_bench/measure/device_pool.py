"""Handing out work to devices, each of which does a piece at a time or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import DeviceLost

Request = TypeVar("Request")
Result = TypeVar("Result")


class Devices(Protocol):
    """What the pool needs of a source of measurements."""

    @property
    def devices(self) -> Sequence[str]:
        """Those in use."""
        ...

    def stop(self) -> None:
        """End what is running; nothing is measured from then on."""
        ...


@dataclass(frozen=True, slots=True)
class DevicePool(Generic[Request, Result]):
    """Gives each device of a source its next piece of work as soon as it is idle."""

    source: Devices  # has the devices
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
