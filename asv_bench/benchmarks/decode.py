"""A decode step by batch and context: the figure that this project is about."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import ClassVar, Literal

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.workloads.named import Workload

from .engine_runs import CPU_MODEL, MODELS, measure, require_model_here
from .guard import check_identity
from .sharing import Samples, SharesRuns, one_sample, shared_figure, tracked

NEW_TOKENS = 224
"""More than 200 steps in which the whole batch decodes, after the prompts are in."""
MOST_ROWS = 160
"""Rows of an engine in which every batch of `BucketPadding` has room to be padded."""
CAPTURED_ROWS = 256
"""Rows of the engine whose captures `GraphCapture` times."""
CPU_TOKENS_AT_ONCE = 8 * 1024
"""Batch times context beyond which a CPU takes too long."""


class Decode(SharesRuns):
    """Sequences that decode together, with `context` tokens each on average over the run."""

    params = (MODELS, [1, 8, 64, 256], [128, 512, 900])
    param_names: ClassVar = ["model", "batch", "context"]

    def setup(self, model: str, batch: int, context: int) -> None:
        check_identity()
        require_model_here(model)
        if model == CPU_MODEL and batch * context > CPU_TOKENS_AT_ONCE:
            raise SkipNotImplemented(f"batch {batch} at context {context} is too much for a CPU")

    @tracked()
    def track_step_time(self, model: str, batch: int, context: int) -> Samples:
        """Seconds of one decode step of the whole batch."""
        return _figure("step_time", model, batch, context)

    @tracked()
    def track_tpot(self, model: str, batch: int, context: int) -> Samples:
        """Time per output token: median over the sequences."""
        return _figure("tpot", model, batch, context)

    @tracked(unit="floors")
    def track_time_over_floor(self, model: str, batch: int, context: int) -> Samples:
        """Step time over the time that reading its bytes takes on this GPU; 1 is the floor."""
        return _figure("time_over_floor", model, batch, context)


class BucketPadding(SharesRuns):
    """A batch one above a captured size, in the graph of the next size and in one of its own."""

    params = (MODELS, [9, 17, 33, 65, 129])
    param_names: ClassVar = ["model", "batch"]

    def setup(self, model: str, batch: int) -> None:
        check_identity()
        require_model_here(model)
        if model == CPU_MODEL:
            raise SkipNotImplemented("a CPU replays no graphs")

    @tracked()
    def track_step_time(self, model: str, batch: int) -> Samples:
        """Seconds of one step in an engine that has graphs for much larger batches."""
        return _padding_figure("padded", model, batch, MOST_ROWS)

    @tracked()
    def track_unpadded_step_time(self, model: str, batch: int) -> Samples:
        """Seconds of one step in an engine whose largest graph is of this very size."""
        return _padding_figure("exact", model, batch, batch)


class GraphCapture(SharesRuns):
    """Capturing decode steps of up to 256 rows, and prefills, when an engine is built."""

    params = (MODELS,)
    param_names: ClassVar = ["model"]
    timeout = 300.0

    def setup(self, model: str) -> None:
        check_identity()
        require_model_here(model)
        if model == CPU_MODEL:
            raise SkipNotImplemented("a CPU captures no graphs")

    @tracked()
    def track_time(self, model: str) -> Samples:
        """Seconds that captures add to building an engine, its kernels compiled."""
        captures_s = capture_seconds(model)
        check_identity()
        return one_sample(captures_s)


def decode_workload(batch: int, context: int) -> Workload:
    """`batch` sequences whose contexts run from half the new tokens below `context` to above it."""
    return Workload(
        name=f"decode-{batch}-{context}",
        num_requests=batch,
        batch_size=batch,
        prompt_lengths=(context - NEW_TOKENS // 2,),
        new_tokens=NEW_TOKENS,
        unique_prompts=True,
    )


def capture_seconds(model: str) -> float:
    """What building an engine with graphs takes longer than building one without."""
    # Compiles and loads kernels, which both engines to come find in place.
    _build_seconds(model, "graph")
    return _build_seconds(model, "graph") - _build_seconds(model, "eager")


def _build_seconds(model: str, decode: Literal["graph", "eager"]) -> float:
    import torch

    from engine import Engine, EngineConfig

    gc.collect()  # an earlier engine's memory
    torch.cuda.synchronize()
    started = time.perf_counter()
    engine = Engine(
        EngineConfig(
            model=f"random:{model}",
            device="cuda",
            dtype="float16",
            decode=decode,
            max_batch_size=CAPTURED_ROWS,
            max_model_len=512,
            num_kv_blocks=1024,
        )
    )
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    if engine.decode_mode != decode:
        raise RuntimeError(f"the engine decodes by {engine.decode_mode}, not by {decode}.")
    return seconds


def _padding_figure(name: str, model: str, batch: int, most_rows: int) -> Samples:
    workload = replace(decode_workload(batch, 256), batch_size=most_rows)
    return shared_figure(
        f"padding-{name}-{batch}", "step_time", lambda: measure(workload, model, warmup_tokens=32)
    )


def _figure(figure: str, model: str, batch: int, context: int) -> Samples:
    workload = decode_workload(batch, context)
    return shared_figure(
        f"{workload.name}-{model}",
        figure,
        lambda: measure(workload, model, warmup_tokens=32),
    )
