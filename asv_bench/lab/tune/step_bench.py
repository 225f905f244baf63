# mypy: disable-error-code="no-untyped-call"
"""Times whole captured decode steps, each cut as a table says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.tune.candidates import Point, Rejected, Timer
from asv_bench.lab.tune.step_rows import StepRows
from kernels.tiles.table import ConfigTable

if TYPE_CHECKING:
    from engine.fused.step import FusedDecode
    from engine.models.spec import DecoderSpec

REPLAYS = 20
WARM_REPLAYS = 2
HOPPER = (9, 0)
MOST_SENTENCE = 160


class StepBench:
    """A model with seeded weights on a GPU, with rows for every point that was asked for.

    `dtype` is of weights and cache: float16 or bfloat16.
    """

    def __init__(self, config: DecoderSpec, device: torch.device, dtype: torch.dtype) -> None:
        from engine.models.decoder import Decoder
        from engine.models.random_weights import random_weights

        weights = random_weights(config, seed=0, device=device, dtype=dtype)
        self._model = Decoder(config, weights)
        self._exact = Decoder(config, {name: one.float() for name, one in weights.items()})
        self._rows: dict[Point, StepRows] = {}

    def prepare(self, table: ConfigTable, point: Point) -> Timer:
        """Check and capture the step cut as the table says.

        Raises Rejected if it does not compile, does not fit the device, or computes something else,
        and MeasurementFailed if it leaves the device unusable.
        """
        if point not in self._rows:
            self._rows[point] = StepRows(self._model, self._exact, point)
        rows = self._rows[point]
        try:
            fused = rows.fused.retabled(table)
            rows.check(fused)
            graph = _capture_step(fused, point.rows)
        except Rejected:
            raise
        except Exception as error:  # compilers and drivers raise whatever they like
            _require_working_device(error)
            lines = str(error).strip().splitlines() or [""]
            raise Rejected(f"{type(error).__name__}: {lines[0][:MOST_SENTENCE]}") from error
        return partial(_step_us, rows, graph, fused)


def hopper_bench(device: str, model: str, dtype: str) -> StepBench:
    """A bench of a model of `RANDOM_CONFIGS`. Raises Refused if the device is no Hopper GPU."""
    from engine.models.registry import RANDOM_CONFIGS

    if torch.cuda.get_device_capability(device) != HOPPER:
        raise Refused(
            "tune needs a Hopper GPU (compute capability 9.0): what other devices run in a fused "
            "step says nothing about it."
        )
    # Which takes no device without a number.
    torch.cuda.set_device(torch.device(device).index or 0)
    return StepBench(RANDOM_CONFIGS[model], torch.device(device), getattr(torch, dtype))


def _capture_step(fused: FusedDecode, num_rows: int) -> torch.cuda.CUDAGraph:
    """A step of so many rows as a graph; one must have run before, so that all is compiled."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused.step(num_rows)
    return graph


def _step_us(rows: StepRows, graph: torch.cuda.CUDAGraph, fused: FusedDecode) -> float:
    """Microseconds of a replay on the device's clock, over `REPLAYS` one after another.

    The caller holds `fused`, whose scratch memory the graph writes. Each replay attends to one
    token more than the one before.
    """
    rows.reset()
    for _ in range(WARM_REPLAYS):
        graph.replay()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(REPLAYS):
        graph.replay()
    after.record()
    after.synchronize()
    return 1e3 * float(before.elapsed_time(after)) / REPLAYS


def _require_working_device(error: Exception) -> None:
    """An error that stays, such as an illegal address, makes every later figure worthless."""
    try:
        torch.cuda.synchronize()
    except Exception as lasting:
        raise MeasurementFailed(
            f"a candidate left the GPU unusable: {error}. Leave its role out and try again."
        ) from lasting
