"""A delay planted in lives, to see whether a comparison finds it, and how an engine obeys it."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

VARIABLE = "KVTRAIL_DELAY_S"
_NAMED = re.compile(r"(.+) \+ (told delay|wait) of ([0-9]+\.[0-9]{9}) s")
_LEAST_SECONDS = 0.001
"""Of a wait, also where no delay is planted: how late a sleep ends is then no part of the delay."""
_WARMING_CYCLES, _TIMED_CYCLES = 500_000_000, 50_000_000


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds that a life waits beyond its work; 0 for the lives it is compared with."""

    seconds: float
    is_told: bool
    """Whether the benchmark is told by a variable, to wait within what it times itself. If not, a
    wait follows its command, which lengthens the wall time only."""

    @staticmethod
    def planted(name: str) -> tuple[str, Delay | None]:
        """What is delayed, and by what, of a name that `named` gave; else the name, and None."""
        found = _NAMED.fullmatch(name)
        if found is None:
            return name, None
        return found[1], Delay(float(found[3]), is_told=found[2] == "told delay")

    def named(self, name: str) -> str:
        """What lives of a commit or label are called in which this is planted."""
        return f"{name} + {self}"

    def variables(self) -> dict[str, str]:
        """What the life is told."""
        return {VARIABLE: f"{self.seconds:.9f}"} if self.is_told else {}

    def follow(self, command: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """A command, with the wait behind it if the benchmark is not told."""
        if self.is_told:
            return command
        wait = f"sleep {_LEAST_SECONDS + self.seconds:.9f}"
        if isinstance(command, str):
            return f"( {command}\n) && {wait}"
        return ("/bin/sh", "-c", f'"$@" && {wait}', "sh", *command)

    def __str__(self) -> str:
        how = "told delay" if self.is_told else "wait"
        return f"{how} of {self.seconds:.9f} s"


def delay_of_steps(engine: object) -> Callable[[], None] | None:
    """What is to be called before each step of an engine; None unless lives are told to wait.

    On a GPU the device itself spins, in the stream that the engine launches on: while it works, the
    host could wait without making a step any longer.
    """
    if VARIABLE not in os.environ:
        return None
    seconds = float(os.environ[VARIABLE])
    device: Any = getattr(engine, "device", None)
    if device is None or device.type != "cuda":
        return partial(_wait, seconds)
    stream = _stream_of_engines(device)
    return partial(_spin, stream, round(seconds * _clock_rate(stream)))


def _wait(seconds: float) -> None:
    """Keep the host busy: a sleep would not end in time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _spin(stream: Any, cycles: int) -> None:
    import torch

    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)


def _stream_of_engines(device: Any) -> Any:
    """The stream that engines launch on; the oldest had none but their caller's."""
    import torch

    # Where it lies now, and where it lay in the engine of an earlier commit.
    for place in ("engine.worker.device", "engine.running.device"):
        with suppress(ImportError, AttributeError):
            return importlib.import_module(place).engine_stream(device)
    return torch.cuda.current_stream(device)


@cache
def _clock_rate(stream: Any) -> float:
    """Cycles a second by which a device spins, measured when its clocks have come up."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _spin(stream, _WARMING_CYCLES)
    before.record(stream)
    _spin(stream, _TIMED_CYCLES)
    after.record(stream)
    after.synchronize()
    return 1e3 * _TIMED_CYCLES / float(before.elapsed_time(after))
