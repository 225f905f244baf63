"""The host's own time in a step: the time of `step` without its waits for the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from engine import TokenEvent


@dataclass(slots=True)
class WaitClock:
    """Seconds that the host has spent in torch's calls that wait for the device."""

    seconds: float = 0.0


@contextmanager
def counted_waits() -> Iterator[WaitClock]:
    """Count the time in every wait for an event, a stream or the device, of any engine."""
    import torch

    clock = WaitClock()

    def counted(wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return wait(*args, **kwargs)
            finally:
                clock.seconds += time.perf_counter() - started

        return timed

    with ExitStack() as stack:
        for owner in (torch.cuda.Event, torch.cuda.Stream, torch.cuda):
            stack.enter_context(patch.object(owner, "synchronize", counted(owner.synchronize)))
        yield clock


class HostTimedEngine:
    """An engine, with the host's own time of each of its steps.

    `in_columns` takes tokens by `step_batches`, which engines of older commits lack; converting
    them to events is not timed.
    """

    def __init__(self, engine: Any, clock: WaitClock, *, in_columns: bool = False) -> None:
        self._engine = engine
        self._clock = clock
        self._in_columns = in_columns
        self.submit = engine.submit
        # For each step its events, and the seconds that the host did not wait in it.
        self.steps: list[tuple[int, float]] = []

    @property
    def has_unfinished(self) -> bool:
        """As the engine's."""
        return bool(self._engine.has_unfinished)

    def step(self) -> Sequence[TokenEvent]:
        """As the engine's."""
        take = self._engine.step_batches if self._in_columns else self._engine.step
        waited, started = self._clock.seconds, time.perf_counter()
        taken = take()
        elapsed = time.perf_counter() - started
        if self._in_columns:
            taken = [event for batch in taken for event in batch.events()]
        self.steps.append((len(taken), elapsed - (self._clock.seconds - waited)))
        events: Sequence[TokenEvent] = taken
        return events

    def full_steps_s(self, batch_size: int) -> list[float]:
        """Host seconds of the steps that delivered one token for each of `batch_size` rows."""
        return [seconds for events, seconds in self.steps if events == batch_size]
