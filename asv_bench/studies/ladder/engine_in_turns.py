"""A rung that takes turns with another, and token times without the waiting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.process.turns import Turns
from asv_bench.workloads.drive import EngineFace
from asv_bench.workloads.run_sample import RunSample

if TYPE_CHECKING:
    from engine import TokenEvent

TURN_SECONDS = 0.05
"""A turn ends with the first step that ends later: what else a machine does changes within seconds,
and a step takes milliseconds."""


class EngineInTurns:
    """An engine whose process passes on between two steps.

    Attributes
    ----------
    waits
        When each wait began and ended, in `time.perf_counter()` seconds.
    """

    def __init__(self, engine: EngineFace, turns: Turns) -> None:
        self._engine = engine
        self._turns = turns
        self._began = time.perf_counter()
        self.waits: list[tuple[float, float]] = []

    def submit(self, prompt: Any, params: Any = None) -> int:
        """See `EngineFace`."""
        return self._engine.submit(prompt, params)

    @property
    def has_unfinished(self) -> bool:
        """See `EngineFace`."""
        return self._engine.has_unfinished

    def step(self) -> Sequence[TokenEvent]:
        """See `EngineFace`; waits before, where this process's turn is over."""
        now = time.perf_counter()
        if self._turns.are_shared and now - self._began >= TURN_SECONDS:
            self._turns.pass_on()
            self._turns.wait()
            self._began = time.perf_counter()
            self.waits.append((now, self._began))
        return self._engine.step()

    def take_waits_out(self, sample: RunSample) -> None:
        """Move the tokens of a run to when they would have come without the waits."""
        if not self.waits:
            return
        begins, ends = np.array(self.waits).T
        waited = np.concatenate([[0.0], np.cumsum(ends - begins)])
        for trace in sample.traces:
            times = np.asarray(trace.token_times_s)
            trace.token_times_s = (times - waited[np.searchsorted(ends, times)]).tolist()
