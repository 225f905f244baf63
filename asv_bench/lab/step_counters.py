"""Counts of what one decode step of the engine does: the same in every process, on any machine.

Four paths are counted: one on the CPU, and three on a pretended GPU (`pretend_cuda`), which replay
a captured graph, launch fused kernels one by one, or launch a kernel an operation. The counts use
the engine's public face only, so every commit can be counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.lab.python_calls import python_calls

if TYPE_CHECKING:
    from asv_bench.lab.pretend_cuda import Traffic
    from engine import Engine

MODEL = "random:gpt2-tiny"
BLOCK_SIZE = 16
PROMPT_TOKENS = 4
LARGEST_BATCH = 64


PATHS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"device": "cpu", "dtype": "float32"},
    "graph": {"device": "cuda", "decode": "graph"},
    "fused": {"device": "cuda", "decode": "eager"},
    "plain": {"device": "cuda", "decode": "eager", "fuse": False},
}
"""The ways in which the engine decodes, and the options that lead there."""

StepCounters: TypeAlias = dict[str, int | None]
"""By the counter's name. None: not counted, as the pretended GPU calls functions itself.

`python_calls` is of all Python functions but numpy's own, `engine_python_calls` of the engine's.
"""


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """A path at one batch size: a steady step, and a whole block of them, boundary included."""

    step: StepCounters
    block: StepCounters


def count_steps(path: str, batch: int) -> CountedSteps:
    """Build an engine, bring `batch` requests to where they all decode, and count.

    All sequences are equally long, so steps repeat with the block size. What torch does is counted
    over the steps of one block, and Python's calls over the next.

    Raises Refused if ranges are on, which add calls, or kernels are interpreted, and
    MeasurementFailed if a step did not deliver one token of each request.
    """
    refuse_what_changes_the_path()
    with device_of(path) as traffic:
        engine = warm_engine(path, batch)
        parts = (1, BLOCK_SIZE - 1)
        seen_by_torch = [_torch_counters(engine, batch, steps, traffic) for steps in parts]
        seen_by_python = [_python_counters(engine, batch, steps, path) for steps in parts]
    first, rest = (
        of_torch | of_python
        for of_torch, of_python in zip(seen_by_torch, seen_by_python, strict=True)
    )
    block = {name: None if one is None else one + (rest[name] or 0) for name, one in first.items()}
    return CountedSteps(first, block)


def _is_pretended(path: str) -> bool:
    return bool(PATHS[path]["device"] == "cuda")


@contextmanager
def device_of(path: str) -> Iterator[Traffic]:
    """The pretended device of a path, and what reaches it: nothing on the CPU."""
    from asv_bench.lab.pretend_cuda import Traffic, pretended_cuda

    with pretended_cuda() if _is_pretended(path) else nullcontext(Traffic()) as traffic:
        yield traffic


def warm_engine(path: str, batch: int, model: str = MODEL) -> Engine:
    """An engine in which every request has decoded for more than a block, so all is in place."""
    from engine import Engine, EngineConfig, SamplingParams

    blocks_each = 8
    config: Any = {
        "model": model,
        "block_size": BLOCK_SIZE,
        "max_batch_size": batch,
        "max_model_len": blocks_each * BLOCK_SIZE,
        "num_kv_blocks": blocks_each * batch,
        # All prompts at once, and no captures of larger prefills.
        "prefill_max_tokens": LARGEST_BATCH * PROMPT_TOKENS,
        **PATHS[path],
    }
    engine = Engine(EngineConfig(**config))
    params = SamplingParams(max_new_tokens=6 * BLOCK_SIZE, ignore_eos=True)
    for request in range(batch):
        # Prompts that share nothing: a request is not another's prefix.
        engine.submit([1 + request, *range(2, 1 + PROMPT_TOKENS)], params)
    received = 0
    while received < batch * (BLOCK_SIZE + PROMPT_TOKENS):
        received += len(engine.step())
    return engine


def run_steps(engine: Engine, batch: int, steps: int) -> None:
    """Run steps, each of which must deliver a token of every request; else MeasurementFailed."""
    for _ in range(steps):
        delivered = len(engine.step())
        if delivered != batch:
            raise MeasurementFailed(
                f"a steady step of {batch} requests must deliver {batch} tokens, but this one "
                f"delivered {delivered}; nothing was counted."
            )


def _torch_counters(engine: Engine, batch: int, steps: int, traffic: Traffic) -> StepCounters:
    from asv_bench.lab.pretend_cuda import OperatorLedger

    traffic.clear()
    with OperatorLedger() as ledger:
        run_steps(engine, batch, steps)
    return {
        "operators": ledger.operators,
        "new_tensors": ledger.new_tensors,
        "new_bytes": ledger.new_bytes,
        "copies_to_device": traffic.copies_to_device,
        "bytes_to_device": traffic.bytes_to_device,
        "copies_to_host": traffic.copies_to_host,
        "bytes_to_host": traffic.bytes_to_host,
        "graph_replays": traffic.graph_replays,
        "launches": len(traffic.launches),
    }


def _python_counters(engine: Engine, batch: int, steps: int, path: str) -> StepCounters:
    with python_calls() as calls:
        run_steps(engine, batch, steps)
    total = None if _is_pretended(path) else calls.total
    return {"engine_python_calls": calls.engine, "python_calls": total}


def refuse_what_changes_the_path() -> None:
    """Refuse variables with which the engine does other things than it does without them."""
    for variable in ("TRITON_INTERPRET", "KVTRAIL_NVTX", "KVTRAIL_CHECK_VALUES"):
        if os.environ.get(variable, "0") not in ("", "0"):
            raise Refused(f"{variable} must not be set: the engine takes another path with it")
