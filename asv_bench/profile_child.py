# mypy: disable-error-code="no-untyped-call"
"""The process that `profile` looks into: a warm engine that decodes a window of steps.

Run as `python -m asv_bench.profile_child '{"workload": ...}'`, with KVTRAIL_NVTX=1 set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asv_bench.drive import run_requests
from asv_bench.errors import MeasurementFailed
from asv_bench.workloads import Workload, workload_named

if TYPE_CHECKING:
    from engine import Engine

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to decode under a profiler.

    `trace` is where torch's trace goes; None leaves the window to a profiler around the process,
    which sees it between cudaProfilerStart and cudaProfilerStop.
    """

    workload: str
    quick: bool
    model: str
    device: str
    dtype: str
    decode: str
    steps: int
    trace: str | None

    def to_argument(self) -> str:
        """The window as the process's one argument."""
        return json.dumps(asdict(self))

    def shape(self) -> Workload:
        """The workload, scaled down where that was asked for."""
        workload = workload_named(self.workload)
        return workload.quick() if self.quick else workload


def decode_window(window: Window) -> int:
    """Decode the window and return how many steps were profiled."""
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

    for prompt in prompts:
        engine.submit(prompt, workload.sampling_params())
    _step_past_prefill(engine, workload)
    with _profiled(engine, window):
        done = 0
        while done < window.steps and engine.has_unfinished:
            engine.step()
            done += 1
    return done


def _step_past_prefill(engine: Engine, workload: Workload) -> None:
    """Step until every request that fits in the batch is decoding."""
    decoding: set[int] = set()
    while len(decoding) < workload.resident:
        if not engine.has_unfinished:
            raise MeasurementFailed(
                f"the requests of {workload.name} ended before all of them were decoding; there "
                f"is no window to profile."
            )
        decoding.update(event.request_id for event in engine.step() if event.index > 0)


@contextmanager
def _profiled(engine: Engine, window: Window) -> Iterator[None]:
    import torch

    on_gpu = engine.device.type == "cuda"
    if window.trace is None:
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        yield
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        yield
        if on_gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(Path(window.trace)))


def main(arguments: list[str]) -> None:
    """Decode the window given as JSON and print the number of its steps."""
    fields: dict[str, Any] = json.loads(arguments[0])
    print(json.dumps({"steps": decode_window(Window(**fields))}))


if __name__ == "__main__":
    main(sys.argv[1:])
