"""Windows of decode steps, traced by the torch profiler in a process of their own.

Such a process runs `python -m asv_bench.explain.window '{"workload": ...}'`, with the engine to
look into first on its search path, and prints what it decoded as JSON.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import TraceSummary, read_traces, traced
from asv_bench.memory import Role, role_bytes
from asv_bench.output.record import REPOSITORY
from asv_bench.process.environment import borrowed_paths, search_path
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE
from asv_bench.workloads.named import Workload, workload_named

if TYPE_CHECKING:
    from engine import Engine, TokenEvent

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to decode under a profiler: a named workload, in full or scaled down."""

    workload: str
    quick: bool
    model: str
    device: str
    dtype: str = "auto"
    steps: int
    trace: str = ""  # where the trace goes

    def shape(self) -> Workload:
        """The workload as it is to be run."""
        workload = workload_named(self.workload)
        return workload.quick() if self.quick else workload


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded window."""

    steps: int
    decode: str
    context: float  # mean tokens that a sequence attended to
    bytes: dict[Role, float]  # that each part of a step must read


def torch_trace(
    window: Window,
    path: Path,
    *,
    folder: Path = REPOSITORY,
    variables: Mapping[str, str] | None = None,
) -> tuple[Decoded, TraceSummary]:
    """A window of the engine in a folder, traced by the torch profiler, the trace at a path.

    Raises MeasurementFailed if the process failed; the sentence ends with what it said.
    """
    task, told = replace(window, trace=str(path)), {NVTX_VARIABLE: "0", **(variables or {})}
    decoded = ask_engine(folder, task, Decoded, told, failed="the profiled process failed:\n")
    [summary] = read_traces(path)
    return decoded, replace(summary, steps=decoded.steps)


def ask_engine(
    folder: Path, task: object, answer: type[Answer], variables: Mapping[str, str], *, failed: str
) -> Answer:
    """What the module of a task makes of it, run with the engine that lies in a folder.

    The folder comes first on the search path and the checkout last, so that today's ruler is found
    and its engine is not.

    Raises MeasurementFailed with the last words of a process that failed, behind `failed`.
    """
    told = dict(variables)
    told["PYTHONPATH"] = search_path([str(folder), *borrowed_paths(), str(REPOSITORY)])
    asked = msgspec.json.encode(task).decode()
    done = run_apart([sys.executable, "-P", "-m", type(task).__module__, asked], told)
    if done.returncode or not done.stdout:
        raise MeasurementFailed(f"{failed}{last_words(done.stdout + done.stderr)}")
    said = done.stdout.rstrip("\n").rpartition("\n")[2]
    try:
        return msgspec.json.decode(said, type=answer)
    except msgspec.MsgspecError as error:
        raise MeasurementFailed(f"{failed}it answered {said!r}: {error}") from None


def decode_window(window: Window) -> Decoded:
    """Decode the window, in the middle of the requests and so long that the batch stays full."""
    from engine import Engine

    workload = window.shape()
    config = workload.engine_config(window.model, device=window.device, dtype=window.dtype)
    engine = Engine(config)
    prompts = workload.prompts(engine.model_config.vocab_size)
    shortest = min(new for _, new in workload.requests)
    steps = min(window.steps, max(1, shortest // 2))
    requests = [
        engine.submit(prompt, workload.sampling_params(index))
        for index, prompt in enumerate(prompts)
    ]
    decoding: set[int] = set()
    while len(decoding) < workload.resident:
        decoding.update(event.request_id for event in engine.step() if event.index > 0)
    # Those before the window warm up.
    _decode(engine, (shortest - steps) // 2)
    with traced(window.device, window.trace):
        events = _decode(engine, steps)
    lengths = dict(zip(requests, map(len, prompts), strict=True))
    # The step that makes token t after a prompt of p tokens attends to p + t. Tokens are read a
    # step or two late, which is next to nothing of a context.
    context = statistics.fmean(lengths[one.request_id] + one.index for one in events)
    read = role_bytes(
        engine.model_config,
        dtype=str(engine.dtype).removeprefix("torch."),
        batch_size=workload.resident,
        mean_context=context,
    )
    return Decoded(steps, engine.decode_mode, context, read)


def _decode(engine: Engine, steps: int) -> list[TokenEvent]:
    """Decode steps and wait for the device; the tokens that were read."""
    import torch

    events = [event for _ in range(steps) for event in engine.step()]
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    return events


if __name__ == "__main__":
    answer = decode_window(msgspec.json.decode(sys.argv[1], type=Window))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
