# mypy: disable-error-code="no-untyped-call"
"""Times whole captured decode steps, each cut as a table says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asv_bench.errors import MeasurementFailed
from asv_bench.memory.replays import seconds_per_replay
from asv_bench.tuning.candidates import Point
from asv_bench.tuning.step_rows import StepRows
from asv_bench.tuning.workbench import Rejected, Timer
from kernels.fused_configs import ConfigTable

if TYPE_CHECKING:
    from engine.fused_decode import FusedDecode
    from engine.model_config import GPT2Config

REPLAYS = 20
WARM_REPLAYS = 2
MOST_SENTENCE = 160


class StepBench:
    """A model on a GPU, with rows for every point that was asked for.

    Parameters
    ----------
    config
        Shape of a GPT-2; its weights are seeded.
    device
        A CUDA device.
    dtype
        Of weights and cache: float16 or bfloat16.
    """

    def __init__(self, config: GPT2Config, device: torch.device, dtype: torch.dtype) -> None:
        from engine.gpt2 import GPT2
        from engine.random_weights import random_weights

        weights = random_weights(config, seed=0, device=device, dtype=dtype)
        self._model = GPT2(config, weights)
        self._exact = GPT2(config, {name: one.float() for name, one in weights.items()})
        self._rows: dict[Point, StepRows] = {}

    def prepare(self, table: ConfigTable, point: Point) -> Timer:
        """Check and capture the step cut as the table says.

        Raises
        ------
        Rejected
            If it does not compile, does not fit the device, or computes something else.
        MeasurementFailed
            If it leaves the device unusable.
        """
        if point not in self._rows:
            self._rows[point] = StepRows(self._model, self._exact, point)
        rows = self._rows[point]
        try:
            fused = rows.fused.retabled(table)
            rows.check(fused)
            graph = _captured(fused, point.rows)
        except Rejected:
            raise
        except Exception as error:  # compilers and drivers raise whatever they like
            _require_working_device(error)
            lines = str(error).strip().splitlines() or [""]
            raise Rejected(f"{type(error).__name__}: {lines[0][:MOST_SENTENCE]}") from error
        return partial(_time, rows, graph, fused)


def _captured(fused: FusedDecode, num_rows: int) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.step(num_rows)
    return graph


def _time(rows: StepRows, graph: torch.cuda.CUDAGraph, fused: FusedDecode) -> float:
    """Microseconds of a step, of `REPLAYS` one after another, from where the sequences begin.

    `fused` owns the scratch that the graph writes: it must live as long.
    """
    rows.reset()
    return 1e6 * seconds_per_replay(graph, REPLAYS, warm=WARM_REPLAYS)


def _require_working_device(error: Exception) -> None:
    """An error that stays, such as an illegal address, makes every later figure worthless."""
    try:
        torch.cuda.synchronize()
    except Exception as lasting:
        raise MeasurementFailed(
            f"a candidate left the GPU unusable: {error}. Leave its role out and try again."
        ) from lasting
