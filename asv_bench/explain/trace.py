"""Chrome traces, as torch's profiler writes them, and the one summary that is made of each.

Windows of decode steps are traced in a process of their own, `python -m asv_bench.explain.trace
'{"workload": ...}'`, with the engine to look into first on its search path. It leaves what it
decoded as JSON at $KVTRAIL_RESULT.
"""

from __future__ import annotations

import gzip
import os
import re
import statistics
import sys
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.processes import run_apart
from asv_bench.memory import Role, role_bytes
from asv_bench.output.record import REPOSITORY
from asv_bench.output.stored_json import Count, Number, Text, decoded
from asv_bench.process.environment import borrowed_paths, search_path
from asv_bench.run.settings import NVTX_VARIABLE
from asv_bench.workloads.named import Workload, workload_named

if TYPE_CHECKING:
    from engine import Engine, TokenEvent

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING = ("cuda_runtime", "cuda_driver")
_LAUNCH = re.compile(r"cu(da)?(Launch|GraphLaunch)")
_STEP = re.compile(r"ProfilerStep#\d+")
_GZIP = b"\x1f\x8b"
_SHORTEST_US = 1e-6
"""Below this, ratios of times might be no numbers any more."""
TOLD = "wait for rank 0"
"""The range of a rank's trace in which the first one has not said yet what to do."""
MESSENGER = re.compile(r"nccl|all_?(reduce|gather|to_?all)|reduce_?scatter|add_ranks|barrier", re.I)
"""What waits for other devices or processes, beside that."""
LONGEST_S = 1800.0
"""What an engine may take to answer, kernels that are compiled for the first time included."""

Answer = TypeVar("Answer")
_Word: TypeAlias = int | float | str | None


class Event(msgspec.Struct, frozen=True):
    """An event of a trace that has a duration; microseconds."""

    name: Text
    ts: Number
    dur: Count
    cat: _Word = None
    pid: _Word = None
    tid: _Word = None

    @property
    def end(self) -> float:
        """When it is over."""
        return self.ts + self.dur


@dataclass(frozen=True, slots=True)
class WorkTime:
    """One kernel, one operator, or one function of Python."""

    name: str
    calls: int
    total_us: float  # without the operators that it calls
    file: str = ""  # that of a function
    # Of the time, beside what held the step up already, or another device or process did.
    hidden_us: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Where the time of a trace went, microseconds."""

    work: list[WorkTime]  # kernels and copies where a device worked, else the host's operators
    is_device: bool  # whether a device worked
    span_us: float  # from the first event to the last
    idle_us: float  # no work ran: gaps on the device, or the host's time outside operators
    launches: int = 0
    launch_us: float = 0.0  # that the host took for all of them
    steps: int | None = None  # None: the trace marks none
    launching_us: float = field(default=0.0, compare=False)  # of the idle time, in launches
    is_profile: bool = False  # whether it is of a life's functions
    # Of one of several ranks, a step: its own work, and waiting for others; else 0.
    alone_us: float = field(default=0.0, compare=False)
    waiting_us: float = field(default=0.0, compare=False)


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


def read_traces(path: Path, steps: int | None = None) -> list[TraceSummary]:
    """The summary of a trace in which something worked, or of each in a folder.

    `steps` are those of a trace that does not mark them. Raises MeasurementFailed if there is no
    trace, or none of what it holds is work.
    """
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.name.endswith((".json", ".json.gz")))
    else:
        files = [one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()]
    if not files:
        raise MeasurementFailed("it left no trace at $KVTRAIL_TRACE.")
    summaries = [summarize_trace(read_events(one), steps) for one in files]
    for summary in summaries:
        if not summary.work:
            raise MeasurementFailed(
                "the trace holds no kernel, copy or operator: events of the categories kernel, "
                "gpu_memcpy, gpu_memset and cpu_op."
            )
        if summary.span_us < _SHORTEST_US:
            raise MeasurementFailed("no event of the trace takes any time.")
    return summaries


def read_events(path: Path) -> list[Event]:
    """The events with a duration of a trace, gzipped or plain.

    Raises MeasurementFailed if it is none, or an event holds something else than its format says.
    """
    try:
        raw = path.read_bytes()
        content = decoded(gzip.decompress(raw) if raw.startswith(_GZIP) else raw, "replace")
        # The format knows both an object and a bare list of events.
        events = content.get("traceEvents") if isinstance(content, dict) else content
        if not isinstance(events, list):
            raise ValueError("it holds no list of events")
        timed = [
            one
            for one in events
            if not isinstance(one, dict) or (one.get("ph") == "X" and "dur" in one)
        ]
        return msgspec.convert(timed, list[Event])
    except msgspec.ValidationError as error:
        why = f"of its events with a duration: {error}"
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = str(error)
    raise MeasurementFailed(f"{path.name} is no Chrome trace: {why}.")


def summarize_trace(events: Iterable[Event], steps: int | None = None) -> TraceSummary:
    """The summary of the events of a trace."""
    by_category: dict[object, list[Event]] = defaultdict(list)
    marks: dict[bool, list[Event]] = defaultdict(list)
    for event in events:
        by_category[event.cat].append(event)
        if _STEP.fullmatch(event.name):
            marks[event.cat == "user_annotation"].append(event)
    # The device's own marks repeat the host's.
    marked = marks[True] or marks[False]
    steps = steps or len(marked) or None
    kernels = [event for category in DEVICE_CATEGORIES for event in by_category[category]]
    launching = [event for category in _LAUNCHING for event in by_category[category]]
    launches = [event for event in launching if _LAUNCH.match(event.name)]
    operators = by_category["cpu_op"]
    # On the host, what waits for others is no operator. Before the first of these, or behind the
    # last, a rank waits for another step.
    ranges = by_category["user_annotation"] if operators and not kernels else ()
    told = [one for one in ranges if one.name == TOLD]
    work = kernels or [*operators, *[one for one in ranges if MESSENGER.search(one.name)]]
    every = [*marked, *work, *launches]
    first = min((one.ts for one in every), default=0.0)
    last = max((one.end for one in every), default=0.0)
    work += [one for one in told if first <= one.ts and one.end <= last]
    calls, spent = Counter[str](), defaultdict[str, float](float)
    places: dict[object, list[Event]] = defaultdict(list)
    threads: dict[object, list[Event]] = defaultdict(list)
    for event in work:
        calls[event.name] += 1
        spent[event.name] += event.dur if kernels else 0.0
        places[event.pid].append(event)
        threads[event.pid, event.tid].append(event)
    for thread in threads.values() if not kernels else ():
        for name, us in _account(thread, is_nested=True).items():
            spent[name] += us
    # Of several devices or processes that which worked the most takes as long as the step.
    accounts = [(_account(one, is_nested=not kernels), one) for one in places.values()]
    alone, busiest = max(accounts, key=lambda one: sum(one[0].values()), default=({}, []))
    busy = sum(alone.values())
    in_gaps = sum(_account([*busiest, *launches], is_nested=False).values()) - busy
    times = [
        WorkTime(name, count, spent[name], hidden_us=spent[name] - alone.get(name, 0.0))
        for name, count in calls.items()
    ]
    alone_us, waiting_us = _as_rank(busiest, first, steps or 1)
    return TraceSummary(
        sorted(times, key=lambda one: -one.total_us),
        bool(kernels),
        span_us=last - first,
        idle_us=max(0.0, last - first - busy),
        launches=len(launches),
        launch_us=sum(event.dur for event in launches),
        steps=steps,
        launching_us=max(0.0, in_gaps),
        alone_us=alone_us,
        waiting_us=waiting_us,
    )


def _as_rank(events: Sequence[Event], begun: float, steps: int) -> tuple[float, float]:
    """What one of several ranks takes a step by itself, and how long it waits for others.

    Of each piece between two sums it is the lower quartile over the steps: what else runs on a
    machine only ever adds time. Without sums, or with other ones in each step, both are 0.
    """
    sums = sorted((one for one in events if MESSENGER.search(one.name)), key=lambda one: one.ts)
    if not sums or len(sums) % steps:
        return 0.0, 0.0
    starts, ends = np.array([(one.ts, one.end) for one in sums]).T
    if sums[0].cat in DEVICE_CATEGORIES:
        # One that was launched early waits for the kernels before it first.
        begins, others = np.array(sorted((one.ts, one.end) for one in events)).T
        over = np.append(begun, np.maximum.accumulate(others))[np.searchsorted(begins, starts)]
        starts = np.clip(over, starts, ends)
    pieces = np.array([starts - np.append(begun, ends[:-1]), ends - starts])
    for one in events:
        if one.name == TOLD and one.ts < starts[-1]:
            pieces[:, np.searchsorted(starts, one.ts)] += -one.dur, one.dur
    alone, waiting = np.quantile(pieces.reshape(2, steps, -1), 0.25, axis=1).sum(axis=1)
    return float(alone), float(waiting)


def _account(events: Iterable[Event], *, is_nested: bool) -> dict[str, float]:
    """Every moment in which something of one device or process ran, given to one name.

    Of kernels that overlap it is the one that began first: those behind it wait for it, or run in
    its shadow. Of operators it is the one that began last, which the others have called.
    """
    found: dict[str, float] = defaultdict(float)
    # Of operators that begin together, the longer has called the others.
    order = sorted(events, key=lambda one: (one.ts, -one.dur if is_nested else one.dur))
    coming, running = deque(order), deque[Event]()
    first, leave = (-1, running.pop) if is_nested else (0, running.popleft)
    for now, until in pairwise(sorted({at for one in order for at in (one.ts, one.end)})):
        while coming and coming[0].ts <= now:
            running.append(coming.popleft())
        while running and running[first].end <= now:
            leave()
        if running:
            found[running[first].name] += until - now
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to decode under a profiler: a named workload, in full or scaled down."""

    workload: str
    quick: bool
    engine: dict[str, Any]  # fields of `EngineConfig`, the model and the device among them
    steps: int
    trace: str = ""  # where the trace goes

    @property
    def ranks(self) -> int:
        """Processes that the engine is spread over."""
        return self.engine.get("tensor_parallel_size") or 1

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
) -> tuple[Decoded, list[TraceSummary]]:
    """A window of the engine in a folder, traced by the torch profiler, the trace at a path; of
    several ranks each by itself.

    Raises MeasurementFailed if the process failed; the sentence ends with what it said.
    """
    task, told = replace(window, trace=str(path)), {NVTX_VARIABLE: "0", **(variables or {})}
    decoded = ask_engine(folder, task, Decoded, told, failing="the profiled process failed")
    files = [path, *sorted(path.parent.glob(f"{path.name}-ranks/rank-*.json"))]
    return decoded, [summary for one in files for summary in read_traces(one, decoded.steps)]


def ask_engine(
    folder: Path, task: object, answer: type[Answer], variables: Mapping[str, str], *, failing: str
) -> Answer:
    """What the module of a task makes of it, run with the engine that lies in a folder.

    The folder comes first on the search path and the checkout last, so that today's ruler is found
    and its engine is not.

    Raises MeasurementFailed as `run_apart` does.
    """
    paths = search_path([str(folder), *borrowed_paths(), str(REPOSITORY)])
    command = sys.executable, "-P", "-m", type(task).__module__, msgspec.json.encode(task).decode()
    told = {**variables, "PYTHONPATH": paths}
    return msgspec.convert(run_apart(command, failing, told, LONGEST_S), answer)


def leave_answer(answer: object) -> None:
    """Answer, and end the process: an engine of an older commit may wait for its ranks for ever."""
    Path(os.environ["KVTRAIL_RESULT"]).write_bytes(msgspec.json.encode(answer))
    os._exit(0)


def decode_window(window: Window) -> Decoded:
    """Decode the window, in the middle of the requests and so long that the batch stays full."""
    from engine import Engine

    workload = window.shape()
    engine = Engine(workload.engine_config(**window.engine))
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
    # Those of older engines leave none.
    ranks = getattr(engine, "tracing_ranks", lambda _: nullcontext())
    with ranks(Path(f"{window.trace}-ranks")), traced(window.engine["device"], window.trace):
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
        options=window.engine,
    )
    # Each of several ranks reads its part.
    parts = {role: moved / window.ranks for role, moved in read.items()}
    return Decoded(steps, engine.decode_mode, context, parts)


def _decode(engine: Engine, steps: int) -> list[TokenEvent]:
    """Decode steps and wait for the device; the tokens that were read."""
    import torch

    events = [event for _ in range(steps) for event in engine.step()]
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    return events


if __name__ == "__main__":
    leave_answer(decode_window(msgspec.json.decode(sys.argv[1], type=Window)))
