"""What all benchmarks have: whose engine they measure, runs of it, and figures that share a run.

A process makes a run once and takes all its figures from it, so TTFT and TPOT are of the same run.
Where it is asked for the same figure again it makes a new run: samples of a figure are independent.
All figures are seconds or ratios of times: asv knows no direction but "bigger is worse".
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.measure.turns import own_turns
from asv_bench.memory import GPT2Shape, read_bandwidth
from asv_bench.process.environment import COMMIT_MARKER, MEASURED_PACKAGES, TRIAL_VARIABLE
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.workloads.named import WORKLOADS, Workload

if TYPE_CHECKING:
    from asv_bench.workloads.drive import Latency, RunSample
    from engine import Engine

Samples: TypeAlias = dict[str, Any]
Figures: TypeAlias = Mapping[str, float | Samples]
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

_runs: dict[str, tuple[Figures, set[str]]] = {}
"""By name: the figures of the last run in this process, and the names of those that were taken."""


class WrongEngineError(RuntimeError):
    """The engine to be measured is not of the commit that the figure would be filed under."""


def check_identity() -> None:
    """See that every measured package comes from the tree of the commit under test.

    With a stray `PYTHONPATH` or an installed copy of the project the same code would be measured
    for many commits. Packages that are imported already are judged by their file, the others by
    where they would be imported from.

    Raises WrongEngineError if one comes from elsewhere, or the tree is of another commit;
    SkipNotImplemented, which asv's runner takes for a skipped benchmark, if the commit has no
    engine yet.
    """
    tree, commit = os.environ.get("KVTRAIL_TREE"), os.environ.get("KVTRAIL_LABEL")
    if not tree or not commit:
        raise WrongEngineError(
            "nothing says which commit's engine is imported. Measure it with `kvtrail bench` or "
            "`kvtrail history`."
        )
    checkout = Path(tree).resolve()
    marker = checkout / COMMIT_MARKER
    held = marker.read_text().strip() if marker.is_file() else "no commit"
    if held != commit:
        raise WrongEngineError(
            f"commit {commit[:8]} is to be measured, but {checkout} holds {held[:9]}; remove that "
            f"folder and run again."
        )
    for package in MEASURED_PACKAGES:
        expected, module = checkout / package, sys.modules.get(package)
        spec = importlib.util.find_spec(package) if module is None else None
        file = spec.origin if spec is not None else getattr(module, "__file__", None)
        if not file or (module is None and not expected.is_dir()):
            raise SkipNotImplemented(f"commit {commit[:8]} has no {package!r} package")
        origin = Path(file).resolve().parent
        if origin != expected:
            raise WrongEngineError(
                f"{package!r} comes from {origin}, not from the checkout of commit "
                f"{commit[:8]}; uninstall that copy or take it off the search path."
            )


def tracked(
    *, unit: str = "seconds", version: str = "1"
) -> Callable[[Callable[..., float | Samples]], Callable[..., Samples]]:
    """Make a benchmark of a method that returns its figure, or samples of it.

    `unit` is "seconds", or a name for what the figure counts: bigger is worse, always. `version` is
    raised when the meaning of the figure changes, which leaves older results out.
    """

    def mark(measure: Callable[..., float | Samples]) -> Callable[..., Samples]:
        @functools.wraps(measure)
        def track(*arguments: Any) -> Samples:
            figure = measure(*arguments)
            # Imported by now, so this judges the very modules that were measured.
            check_identity()
            return samples_of(figure)

        track.__dict__.update(unit=unit, version=version)
        return track

    return mark


def shared(figure: str, what: str, *, unit: str = "seconds") -> Callable[..., Samples]:
    """A benchmark that takes one figure of the run of its class, see `SharesRuns.run`.

    Its samples say as "run" which run that was.
    """

    def track(self: SharesRuns, *values: Any) -> Samples:
        run, name = self.run_name(*values), self.named(figure, *values)
        figures, taken = _runs.get(run, ({}, {name}))
        if name in taken:
            figures, taken = _runs[run] = self.run(*values), set()
        taken.add(name)
        if name not in figures:
            raise SkipNotImplemented(f"{run} has no {name} on this machine")
        return {**samples_of(figures[name]), "run": run}

    track.__doc__ = what
    track.__qualname__ = track.__name__
    # asv's pages show the source.
    track.__dict__["pretty_source"] = f"# {what}\nshared({figure!r})"
    return tracked(unit=unit)(track)


def median_s(
    call: Callable[[], object],
    readings: int,
    *,
    warmups: int = 1,
    before: Callable[[], object] = lambda: None,
) -> float:
    """The median seconds of some calls after warm-up calls; `before` each, something untimed."""
    seconds = []
    for _ in range(warmups + readings):
        before()
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds[warmups:])


def samples_of(figure: float | Samples, windows: Sequence[float] = ()) -> Samples:
    """The figure of this process, in the form in which asv's runner knows a sample.

    `windows` are those of several runs, of which it was made: they are not independent of each
    other, as samples are. What has this form already is kept.

    Raises ValueError if the figure is negative or not finite.
    """
    if isinstance(figure, dict):
        return figure
    value = float(figure)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the measurement gave {value!r}, which is no time or ratio.")
    return {"samples": [value], "number": 1, **({"windows": list(windows)} if windows else {})}


class CommitBenchmark:
    """Base of all benchmarks: measures the commit under test, or skips.

    Parameters are named where a class is defined, `class Decode(CommitBenchmark, batch=[1, 8])`.
    """

    params: ClassVar[tuple[list[Any], ...]] = ()
    param_names: ClassVar[list[str]] = []

    def __init_subclass__(cls, **params: list[Any]) -> None:
        super().__init_subclass__()
        if params:
            cls.params, cls.param_names = tuple(params.values()), list(params)

    def setup(self, *values: Any) -> None:
        """Check what would be measured, and prepare it."""
        check_identity()
        self.prepare(*values)

    def prepare(self, *values: Any, **_: Any) -> None:
        """Skip parameters that are not measured here; build what the others need."""


class SharesRuns(CommitBenchmark):
    """Base of benchmarks whose figures come from a shared run."""

    run: Callable[..., Figures]
    """Makes the run for the values of the parameters."""

    def run_name(self, *values: Any) -> str:
        """The name of that run, which other classes may share."""
        return "-".join([type(self).__name__, *map(str, values)])

    def named(self, figure: str, *values: Any, **_: Any) -> str:
        """The name that the figure has in the run."""
        return figure


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

    # Once, and after the runs: it takes memory that the engine must not find otherwise.
    @functools.cache
    def floor_ms() -> float | None:
        return workload.floor_ms(GPT2Shape(), dtype, read_bandwidth(device), {})

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
