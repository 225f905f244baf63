"""What the host does in a step while the device works: the time of `step` without its waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from asv_bench.workloads.drive import EngineFace, Event, Prompt

Arrived = TypeVar("Arrived")


class EventBatch(Protocol):
    """Tokens in columns (`engine.TokenBatch`)."""

    def events(self) -> Sequence[Event]: ...


class BatchFace(EngineFace, Protocol):
    """An engine that also delivers tokens in columns; those of older commits do not."""

    def step_batches(self) -> Sequence[EventBatch]: ...


class WaitClock:
    """Seconds that the host has spent in torch's calls that wait for the device."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """`wait`, with its time counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return wait(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return counted


@contextmanager
def counted_waits() -> Iterator[WaitClock]:
    """Count the time in every wait for an event, a stream or the device, of any engine."""
    import torch

    clock = WaitClock()
    waiting: tuple[Any, ...] = (torch.cuda.Event, torch.cuda.Stream, torch.cuda)
    originals = [owner.synchronize for owner in waiting]
    for owner, original in zip(waiting, originals, strict=True):
        owner.synchronize = clock.timed(original)
    try:
        yield clock
    finally:
        for owner, original in zip(waiting, originals, strict=True):
            owner.synchronize = original


class HostTimedEngine:
    """An engine, with the host's own time of each of its steps.

    Attributes
    ----------
    steps
        For each step its events and the seconds that the host did not wait in it.
    """

    def __init__(self, engine: EngineFace, clock: WaitClock) -> None:
        self._engine = engine
        self._clock = clock
        self.steps: list[tuple[int, float]] = []

    @property
    def has_unfinished(self) -> bool:
        """As the engine's."""
        return self._engine.has_unfinished

    def submit(self, prompt: Prompt, params: Any = None) -> int:
        """As the engine's."""
        return self._engine.submit(prompt, params)

    def step(self) -> Sequence[Event]:
        """As the engine's."""
        events, seconds = self._without_waits(self._engine.step)
        self.steps.append((len(events), seconds))
        return events

    def full_steps_s(self, batch_size: int) -> list[float]:
        """Host seconds of the steps that delivered one token for each of `batch_size` rows."""
        return [seconds for events, seconds in self.steps if events == batch_size]

    def _without_waits(self, step: Callable[[], Arrived]) -> tuple[Arrived, float]:
        """What `step` returns, and the seconds of it in which the host did not wait."""
        waited, started = self._clock.seconds, time.perf_counter()
        arrived = step()
        elapsed = time.perf_counter() - started
        return arrived, elapsed - (self._clock.seconds - waited)


class BatchTimedEngine(HostTimedEngine):
    """An engine whose tokens are taken in columns; events are made of them off the clock."""

    def __init__(self, engine: BatchFace, clock: WaitClock) -> None:
        super().__init__(engine, clock)
        self._in_batches = engine

    def step(self) -> Sequence[Event]:
        """As the engine's."""
        batches, seconds = self._without_waits(self._in_batches.step_batches)
        events = [event for batch in batches for event in batch.events()]
        self.steps.append((len(events), seconds))
        return events
