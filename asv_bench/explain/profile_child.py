# mypy: disable-error-code="no-untyped-call"
"""The process that the torch profiler looks into: a warm engine that decodes a window of steps.

Run as `python -m asv_bench.explain.profile_child '{"workload": ...}'`; it prints what it decoded as
JSON. KVTRAIL_NVTX=1 turns the ranges on.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from asv_bench.errors import MeasurementFailed
from asv_bench.workloads.drive import run_requests
from asv_bench.workloads.named import Workload, workload_named

if TYPE_CHECKING:
    from engine import Engine

WARM_UP_TOKENS = 8
_MARGIN = 8
"""Tokens that a request has beyond the window: some before its first step, some in flight after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to decode under a profiler: a named workload, in full or scaled down."""

    workload: str
    quick: bool
    model: str
    device: str
    dtype: str = "auto"
    decode: str
    steps: int
    trace: str = ""  # where the trace goes
    skip: int = 0  # steps of the full batch before the window, so that its contexts are longer

    def to_argument(self) -> str:
        """The window as the process's argument."""
        return json.dumps(asdict(self))

    def shape(self) -> Workload:
        """The workload as it is to be run."""
        workload = workload_named(self.workload)
        return workload.quick() if self.quick else workload


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded window."""

    steps: int
    decode: str
    step_us: float  # of a step without a profiler, on as many steps before the window
    # Mean tokens attended to in the last step; None: the requests ended with the window.
    last_context: float | None = None


def decode_window(window: Window) -> Decoded:
    """Decode the window, cut to half of the requests' steps so that the batch stays full.

    The steps to skip are cut to what remains.
    """
    from engine import Engine, SamplingParams

    workload = window.shape()
    config = workload.engine_config(
        window.model, device=window.device, dtype=window.dtype, decode=window.decode
    )
    engine = Engine(config)
    prompts = workload.prompts(engine.model_config.vocab_size)
    warm_up_tokens = min(WARM_UP_TOKENS, workload.new_tokens)
    warm = SamplingParams(max_new_tokens=warm_up_tokens, ignore_eos=True)
    run_requests(engine, prompts, [warm] * len(prompts))

    steps = min(window.steps, max(1, workload.new_tokens // 2))
    skip = max(0, min(window.skip, workload.new_tokens - steps - _MARGIN))
    requests = _submit(engine, workload, prompts)
    _decode(engine, skip)
    started = time.perf_counter()
    _decode(engine, steps)
    step_us = 1e6 * (time.perf_counter() - started) / steps
    for request in requests:
        engine.abort(request)
    while engine.has_unfinished:
        engine.step()
    requests = _submit(engine, workload, prompts)
    _decode(engine, skip)
    with traced(window.device, window.trace):
        _decode(engine, steps)
    prompt_lengths = dict(zip(requests, map(len, prompts), strict=True))
    return Decoded(steps, engine.decode_mode, step_us, _last_context(engine, prompt_lengths))


def _submit(engine: Engine, workload: Workload, prompts: Sequence[list[int]]) -> list[int]:
    """Submit all requests, step until all that fit in the batch decode, and return their ids."""
    requests = [
        engine.submit(prompt, workload.sampling_params(index))
        for index, prompt in enumerate(prompts)
    ]
    decoding: set[int] = set()
    while len(decoding) < workload.resident:
        if not engine.has_unfinished:
            raise MeasurementFailed(
                f"the requests of {workload.name} ended before all of them were decoding; there "
                f"is no window to profile."
            )
        decoding.update(event.request_id for event in engine.step() if event.index > 0)
    _wait_for_device(engine)
    return requests


def _decode(engine: Engine, steps: int) -> None:
    """Decode steps and wait for the device."""
    for _ in range(steps):
        engine.step()
    _wait_for_device(engine)


def _last_context(engine: Engine, prompt_lengths: Mapping[int, int]) -> float | None:
    """Mean tokens attended to in the last step, whose tokens may not have been read yet.

    The next step reads them. The step that makes token t after a prompt of p tokens attends to
    p + t tokens (`Workload.mean_context`).
    """
    if not engine.has_unfinished:
        return None
    newest: dict[int, int] = {}
    for event in engine.step():
        newest[event.request_id] = max(event.index, newest.get(event.request_id, 0))
    if not newest:
        return None
    return statistics.fmean(prompt_lengths[request] + index for request, index in newest.items())


def _wait_for_device(engine: Engine) -> None:
    import torch

    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)


@contextmanager
def traced(device: str, path: str) -> Iterator[None]:
    """Leave a trace by the torch profiler of what runs inside."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        yield
    profiler.export_chrome_trace(path)


if __name__ == "__main__":
    print(json.dumps(asdict(decode_window(Window(**json.loads(sys.argv[1]))))))
