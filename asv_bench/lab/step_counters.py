"""Engines whose decode steps are counted: the same in every process, on any machine.

There are four paths: one on the CPU, and three on a pretended GPU (`pretend_cuda`), which replay
a captured graph, launch fused kernels one by one, or launch a kernel an operation. Only the
engine's public face is used, so every commit can be counted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.process.environment import MEASURED_PACKAGES

if TYPE_CHECKING:
    from asv_bench.lab.pretend_cuda import Traffic
    from engine import Engine

MODEL = "random:gpt2-tiny"
BLOCK_SIZE = 16
PROMPT_TOKENS = 4
LARGEST_BATCH = 64
UNCOUNTED_PACKAGES = ("numpy",)
"""Baselines are not kept for each of its versions, so what it calls inside itself is left out."""
_GENERATED = "<string>"
"""What stands for a file where a function was generated."""

PATHS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"device": "cpu", "dtype": "float32"},
    "graph": {"device": "cuda", "decode": "graph"},
    "fused": {"device": "cuda", "decode": "eager"},
    "plain": {"device": "cuda", "decode": "eager", "fuse": False},
}
"""The ways in which the engine decodes, and the options that lead there."""


@contextmanager
def device_of(path: str) -> Iterator[Traffic]:
    """The pretended device of a path, and what reaches it: nothing on the CPU."""
    from asv_bench.lab.pretend_cuda import Traffic, pretended_cuda

    if PATHS[path]["device"] == "cpu":
        yield Traffic()
        return
    with pretended_cuda() as traffic:
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


def refuse_what_changes_the_path() -> None:
    """Refuse variables with which the engine does other things than it does without them."""
    for variable in ("TRITON_INTERPRET", "KVTRAIL_NVTX", "KVTRAIL_CHECK_VALUES"):
        if os.environ.get(variable, "0") not in ("", "0"):
            raise Refused(f"{variable} must not be set: the engine takes another path with it")


@dataclass(slots=True)
class PythonCalls:
    """Calls of Python functions; a generator that is resumed counts as called."""

    total: int = 0  # of all functions but numpy's
    engine: int = 0  # of functions defined in the files of the engine's packages


@contextmanager
def python_calls(
    packages: Sequence[str] = MEASURED_PACKAGES, *, with_generated: bool = False
) -> Iterator[PythonCalls]:
    """Count calls in this thread, inside the block. The garbage collector is off meanwhile.

    Calls of functions of `packages` are the engine's; `with_generated`, so are those of functions
    without a file: constructors of named tuples and dataclasses.
    """
    calls = PythonCalls()
    ours = (*_folders(packages), *((_GENERATED,) if with_generated else ()))
    uncounted = _folders(UNCOUNTED_PACKAGES)

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        is_end = frame.f_code.co_name == python_calls.__name__ and path == __file__
        if event != "call" or is_end or path.startswith(uncounted):
            return
        calls.total += 1
        calls.engine += path.startswith(ours)

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()


def _folders(packages: Sequence[str]) -> tuple[str, ...]:
    found = (util.find_spec(package) for package in packages)
    return tuple(f"{Path(spec.origin).parent}/" for spec in found if spec and spec.origin)
