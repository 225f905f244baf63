"""A decode step by batch and context: the figure that this project is about."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any, Literal

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.workloads.named import Workload

from . import sharing
from .sharing import CPU_MODEL, MODELS, OVER_FLOOR, Figures, OfModel, Samples, shared, tracked

NEW_TOKENS = 224
"""More than 200 steps in which the whole batch decodes, after the prompts are in."""
MOST_ROWS = 160
"""Rows of an engine in which every batch of `BucketPadding` has room to be padded."""
CAPTURED_ROWS = 256
"""Rows of the engine whose captures `GraphCapture` times."""
CPU_TOKENS_AT_ONCE = 8 * 1024
"""Batch times context beyond which a CPU takes too long."""


class Decode(OfModel, model=MODELS, batch=[1, 8, 64, 256], context=[128, 512, 900]):
    """Sequences that decode together, with `context` tokens each on average over the run."""

    def prepare(self, model: str, batch: int, context: int) -> None:
        super().prepare(model)
        if model == CPU_MODEL and batch * context > CPU_TOKENS_AT_ONCE:
            raise SkipNotImplemented(f"batch {batch} at context {context} is too much for a CPU")

    def run(self, model: str, batch: int, context: int) -> Figures:
        return sharing.measure(decode_workload(batch, context), model, warmup_tokens=32)

    track_step_time = shared("step_time", "Seconds of one decode step of the whole batch.")
    track_tpot = shared("tpot", "Time per output token: median over the sequences.")
    track_time_over_floor = shared("time_over_floor", OVER_FLOOR, unit="floors")


class BucketPadding(OfModel, model=MODELS, batch=[9, 17, 33, 65, 129]):
    """A batch one above a captured size, padded to the next size and in a graph of its own size."""

    is_for_cpu = False

    @tracked()
    def track_step_time(self, model: str, batch: int) -> Samples:
        """Seconds of one step in an engine that has graphs for much larger batches."""
        return _padded_step_s(model, batch, MOST_ROWS)

    @tracked()
    def track_unpadded_step_time(self, model: str, batch: int) -> Samples:
        """Seconds of one step in an engine whose largest graph is of this very size."""
        return _padded_step_s(model, batch, batch)


class GraphCapture(OfModel):
    """Capturing decode steps of up to 256 rows, and prefills, when an engine is built."""

    is_for_cpu = False

    @tracked()
    def track_time(self, model: str) -> float:
        """Seconds that captures add to building an engine, its kernels compiled."""
        # The first build compiles and loads kernels for both timed ones.
        _build_seconds(model, "graph")
        return _build_seconds(model, "graph") - _build_seconds(model, "eager")


def decode_workload(batch: int, context: int) -> Workload:
    """`batch` sequences whose contexts grow by `NEW_TOKENS` and are `context` on average."""
    name, prompts = f"decode-{batch}-{context}", (context - NEW_TOKENS // 2,)
    return Workload(name, batch, batch, prompts, NEW_TOKENS, unique_prompts=True)


def _build_seconds(model: str, decode: Literal["graph", "eager"]) -> float:
    import torch

    from engine import Engine, EngineConfig

    place: Any = {"device": "cuda", "dtype": "float16", "decode": decode}
    sizes: Any = {"max_batch_size": CAPTURED_ROWS, "max_model_len": 512, "num_kv_blocks": 1024}
    gc.collect()  # an earlier engine's memory
    torch.cuda.synchronize()
    started = time.perf_counter()
    engine = Engine(EngineConfig(model=f"random:{model}", **place, **sizes))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    if engine.decode_mode != decode:
        raise RuntimeError(f"the engine decodes by {engine.decode_mode}, not by {decode}.")
    return seconds


def _padded_step_s(model: str, batch: int, most_rows: int) -> Samples:
    workload = replace(decode_workload(batch, 256), batch_size=most_rows)
    return sharing.measure(workload, model, warmup_tokens=32)["step_time"]
