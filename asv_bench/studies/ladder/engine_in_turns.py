"""A rung that takes turns with another, and token times without the waiting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_bench.measure.turns import Turns
from asv_bench.workloads.drive import EngineFace, RunSample
from asv_bench.workloads.named import BLOCK_SIZE

if TYPE_CHECKING:
    from engine import TokenEvent

TURN_STEPS = 4
"""Steps of a turn, tens of milliseconds: what else a machine does lasts longer and meets both."""
TURNS_OF_BLOCK = BLOCK_SIZE // TURN_STEPS
"""After so many turns a sequence needs a new block: every such turn does like work."""


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
        self._steps = 0
        self.waits: list[tuple[float, float]] = []

    def begin_run(self) -> None:
        """Begin a turn with the next step, so that all runs have the same turns."""
        self._steps = 0

    def submit(self, prompt: Any, params: Any = None) -> int:
        """See `EngineFace`."""
        return self._engine.submit(prompt, params)

    @property
    def has_unfinished(self) -> bool:
        """See `EngineFace`."""
        return self._engine.has_unfinished

    def step(self) -> Sequence[TokenEvent]:
        """See `EngineFace`; waits before, where this process's turn is over."""
        if self._turns.are_shared and self._steps and self._steps % TURN_STEPS == 0:
            begun = time.perf_counter()
            self._turns.pass_on()
            self._turns.wait()
            self.waits.append((begun, time.perf_counter()))
        self._steps += 1
        return self._engine.step()

    def take_waits_out(self, sample: RunSample) -> list[float]:
        """Move the tokens of a run to when they would have come without the waits.

        Returns
        -------
        list of float
            Seconds a token in each whole turn from the first token to the last.
        """
        if not self.waits:
            return []
        begins, ends = np.array(self.waits).T
        waited = np.concatenate([[0.0], np.cumsum(ends - begins)])
        for trace in sample.traces:
            times = np.asarray(trace.token_times_s)
            trace.token_times_s = (times - waited[np.searchsorted(ends, times)]).tolist()
        times = np.sort(np.concatenate([trace.token_times_s for trace in sample.traces]))
        edges = ends - waited[1:]
        edges = edges[(edges >= times[0]) & (edges <= times[-1])]
        tokens = np.diff(np.searchsorted(times, edges, side="right"))
        seconds: list[float] = (np.diff(edges) / tokens).tolist()
        return seconds
