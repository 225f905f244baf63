"""Runs of an engine in a benchmark's process, and their figures for asv.

All figures are seconds or ratios of times: asv knows no direction but "bigger is worse".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.measure.turns import own_turns
from asv_bench.memory import GPT2Shape, read_bandwidth
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.workloads.named import WORKLOADS, Workload

from .sharing import Figures, Samples, SharesRuns, samples_of

if TYPE_CHECKING:
    from asv_bench.workloads.drive import Latency, RunSample
    from engine import Engine

CPU_MODEL = "gpt2-tiny"
GPU_MODEL = "gpt2"
MODELS = [CPU_MODEL, GPU_MODEL]
"""Parameters are the same on every machine and at every commit; what is not for a machine is
skipped there."""
PLACES = {CPU_MODEL: ("cpu", "float32"), GPU_MODEL: ("cuda", "float16")}
"""The device and the type that each is measured with."""
PROMPT_IDS = {CPU_MODEL: 256, GPU_MODEL: 50257}
"""Prompt tokens are drawn below this id: all of GPT-2's vocabulary, and a part of the tiny one's
that stays valid should its vocabulary change."""
OVER_FLOOR = "Step time over the time that reading its bytes takes on this GPU; 1 is the floor."
OVER_TOKENS = "Wall time of the whole run over the token ids that it generated."
STEP = "Seconds of one decode step while all requests decode."
STEPS_PER_WINDOW = 8
"""Steps that one reading of the step time spans. The engine may hand out the tokens of several
steps together, so single gaps say when tokens were collected, not how long a step took."""
RUNS_ON_CPU = 5
"""Measured runs in a process on a CPU, of which the least disturbed is kept: what else runs on the
machine only ever adds time."""
LARGEST_PREFILL = 8192
PREFILL_STEP = 64
"""Prompt tokens that an engine computes at once at most, and the step in which it captures them."""
# How many runs a process measures: the fewest, more until so many seconds, never over the most.
ON_CPU = (RUNS_ON_CPU, RUNS_ON_CPU, 0.0)
# Single runs are longer or shorter by chance there, so the median of several is kept.
ON_GPU = (3, 12, 1.0)
TRIAL_ON_GPU = (1, 1, 0.0)
# The median, too: of the machine's other work, both processes have as much.
IN_TURNS = (5, 40, 5.0)


def block_manager() -> Any:
    """The class `KVBlockManager`, which older engines have in a module of its own."""
    import engine

    public = getattr(engine, "KVBlockManager", None)
    return public or import_module("engine.kv_blocks").KVBlockManager


class OfModel(SharesRuns, model=MODELS):
    """Base of benchmarks whose first parameter is the model."""

    is_for_cpu = True

    def prepare(self, model: str, *others: Any) -> None:
        on_gpu = has_cuda_gpu()
        if (model == GPU_MODEL) != on_gpu:
            where = "the GPU" if on_gpu else "a CPU"
            raise SkipNotImplemented(f"{model} is not measured on {where}")
        if model == CPU_MODEL and not self.is_for_cpu:
            raise SkipNotImplemented("a CPU replays no graphs, and has no host beside it")


class OfWorkload(OfModel):
    """Base of benchmarks of a named workload; see `asv_bench.workloads.named`."""

    workload = ""

    def run(self, model: str, *others: Any) -> Figures:
        """The workload in full with the GPU's model, small with the CPU's."""
        named = WORKLOADS[self.workload]
        return measure(named if model == GPU_MODEL else named.quick(), model)

    def run_name(self, *values: Any) -> str:
        return f"{self.workload}-{values[0]}"


def steady_step_s(sample: RunSample) -> float:
    """Median seconds per decode step while every request of the run was decoding.

    Raises ValueError if they did not decode together for long enough to read one.
    """
    first = max(trace.token_times_s[0] for trace in sample.traces)
    last = min(trace.token_times_s[-1] for trace in sample.traces)
    readings: list[float] = []
    for trace in sample.traces:
        times = np.asarray(trace.token_times_s, np.float64)
        together = times[(times >= first) & (times <= last)]
        readings += (together[STEPS_PER_WINDOW:] - together[:-STEPS_PER_WINDOW]).tolist()
    if not readings:
        raise ValueError(
            f"the requests decoded together for fewer than {STEPS_PER_WINDOW} steps; "
            f"use a workload whose requests all run at the same time."
        )
    return median(readings) / STEPS_PER_WINDOW


def warm_engine(
    workload: Workload, model: str, warmup_tokens: int | None = None, **settings: Any
) -> Engine:
    """An engine that has run the workload once, with `warmup_tokens` new tokens a request."""
    from asv_bench.workloads.drive import run_workload
    from engine import Engine

    device, dtype = PLACES[model]
    # A limit of prompt tokens in one step that this workload never meets; None: the engine's own.
    # An engine captures a prefill of each size up to its limit when it is built.
    tokens = workload.resident * max(workload.prompt_lengths)
    most = -(-tokens // PREFILL_STEP) * PREFILL_STEP
    limit = most if most <= LARGEST_PREFILL else None
    own = {"device": device, "dtype": dtype, "prefill_max_tokens": limit}
    engine = Engine(workload.engine_config(f"random:{model}", **(own | settings)))
    warmup = replace(workload, new_tokens=warmup_tokens or workload.new_tokens)
    run_workload(engine, warmup, PROMPT_IDS[model])
    return engine


def measure(
    workload: Workload, model: str, *, warmup_tokens: int | None = None
) -> dict[str, Samples]:
    """The figures of `run_figures` on a warm engine, as `windowed` chooses them, in seconds.

    The run before the measured ones has `warmup_tokens` new tokens a request; None: as many.
    """
    device, dtype = PLACES[model]

    @cache  # once, and after the runs: it takes memory that the engine must not find otherwise
    def floor_ms() -> float | None:
        return workload.floor_ms(GPT2Shape(), dtype, read_bandwidth(device))

    def figures_of(run: RunSample) -> dict[str, float]:
        return run_figures(run, floor_ms())

    return windowed(workload, model, figures_of, warmup_tokens)


def windowed(
    workload: Workload,
    model: str,
    figures_of: Callable[[RunSample], dict[str, float]],
    warmup_tokens: int | None = None,
    **settings: Any,
) -> dict[str, Samples]:
    """Figures of several runs of a workload on a `warm_engine`, among them "step_time".

    All are of the least disturbed run on a CPU. On a GPU, or in turns with another process, each is
    the median over the runs. Processes in turns make their engines at the same time, and none
    measures before both have.
    """
    from asv_bench.workloads.drive import run_workload

    turns = own_turns()
    if PLACES[model][0] == "cpu":
        effort = IN_TURNS if turns.are_shared else ON_CPU
    else:
        effort = TRIAL_ON_GPU if os.environ.get(TRIAL_VARIABLE) else ON_GPU
    fewest, most, seconds = effort
    engine = warm_engine(workload, model, warmup_tokens, **settings)
    # The other makes its own meanwhile, and passes on once it has.
    turns.wait()
    runs: list[RunSample] = []
    while len(runs) < fewest or (len(runs) < most and sum(run.wall_s for run in runs) < seconds):
        turns.pass_on()
        turns.wait()
        runs.append(run_workload(engine, workload, PROMPT_IDS[model]))
    turns.pass_on()
    windows = [figures_of(run) for run in runs]
    least = min(windows, key=itemgetter("step_time"))
    figures = {}
    for name in least:
        each = [window[name] for window in windows]
        figures[name] = samples_of(least[name] if effort is ON_CPU else median(each), each)
    return figures


def run_figures(sample: RunSample, floor_ms: float | None) -> dict[str, float]:
    """The figures of one run, of latencies the percentiles over requests, of ITL over gaps."""
    step = steady_step_s(sample)
    figures = {"step_time": step, "seconds_per_token": sample.wall_s / sample.generated_tokens}
    latencies: tuple[Latency, ...] = ("ttft", "tpot", "itl")
    for name in latencies:
        p50, p95, p99 = map(float, np.percentile(sample.of_requests(name), (50, 95, 99)))
        figures |= {name: p50, f"{name}_p95": p95, f"{name}_p99": p99}
    if floor_ms is not None:
        figures["time_over_floor"] = 1e3 * step / floor_ms
    return figures
