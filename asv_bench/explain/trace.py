"""Chrome traces, as torch's profiler writes them, and the one summary that is made of each."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from asv_bench.errors import MeasurementFailed
from asv_bench.output.stored_json import decoded

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING = ("cuda_runtime", "cuda_driver")
_LAUNCH = re.compile(r"cu(da)?(Launch|GraphLaunch)")
_STEP = re.compile(r"ProfilerStep#\d+")
_GZIP = b"\x1f\x8b"
_LONGEST, _SHORTEST_US = 1e100, 1e-6
"""Beyond these, ratios and sums of times might be no numbers any more."""

_Word: TypeAlias = int | float | str | None
_Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=-_LONGEST, le=_LONGEST)]
_Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_LONGEST)]


class EventArguments(msgspec.Struct, frozen=True):
    """What is read of an event's `args`: `correlation` is what a kernel and its launch share."""

    correlation: _Word = None


class Event(msgspec.Struct, frozen=True):
    """An event of a trace that has a duration; microseconds."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    ts: _Moment
    dur: _Time
    cat: _Word = None
    pid: _Word = None
    tid: _Word = None
    args: EventArguments = EventArguments()

    @property
    def end(self) -> float:
        """When it is over."""
        return self.ts + self.dur


@dataclass(frozen=True, slots=True)
class RangeTime:
    """One named range, with those within it, on the host and of the kernels launched in it."""

    name: str
    calls: int
    host_us: float
    device_us: float  # whenever the kernels ran


@dataclass(frozen=True, slots=True)
class WorkTime:
    """One kernel, or one operator."""

    name: str
    calls: int
    total_us: float  # without the operators that it calls


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Where the time of a trace went, microseconds; each list has the largest first."""

    work: list[WorkTime]  # kernels and copies where a device worked, else the host's operators
    is_device: bool  # whether a device worked
    ranges: list[RangeTime]
    span_us: float  # from the first event to the last
    idle_us: float  # no work ran: gaps on the device, or the host's time outside operators
    launches: int = 0
    launch_us: float = 0.0  # that the host took for all of them
    steps: int | None = None  # None: the trace marks none


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


def read_traces(path: Path) -> list[TraceSummary]:
    """The summary of a trace in which something worked, or of each in a folder.

    Raises MeasurementFailed if there is no trace, or none of what it holds is work.
    """
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.name.endswith((".json", ".json.gz")))
    else:
        gzipped = path.with_name(f"{path.name}.gz")
        files = [one for one in (path, gzipped) if one.is_file()]
    if not files:
        raise MeasurementFailed("it left no trace at $KVTRAIL_TRACE.")
    summaries = [summarize_trace(read_events(one)) for one in files]
    for summary in summaries:
        if not summary.work:
            raise MeasurementFailed(
                "the trace holds no kernel, copy or operator: events of the categories kernel, "
                "gpu_memcpy, gpu_memset and cpu_op."
            )
        if summary.span_us < _SHORTEST_US:
            raise MeasurementFailed("no event of the trace takes any time.")
    return summaries


def device_work(path: Path) -> list[Event]:
    """The kernels and copies of a device in a trace, in the order in which they began."""
    work = [event for event in read_events(path) if event.cat in DEVICE_CATEGORIES]
    return sorted(work, key=lambda one: one.ts)


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


def summarize_trace(events: Iterable[Event]) -> TraceSummary:
    """The summary of the events of a trace."""
    by_category: dict[object, list[Event]] = defaultdict(list)
    for event in events:
        by_category[event.cat].append(event)
    noted = by_category["user_annotation"]
    kernels = [event for category in DEVICE_CATEGORIES for event in by_category[category]]
    launching = [event for category in _LAUNCHING for event in by_category[category]]
    launches = [event for event in launching if _LAUNCH.match(event.name)]
    # The device's own marks repeat the host's.
    marks = [event for event in noted if _STEP.fullmatch(event.name)] or [
        event for one in by_category.values() for event in one if _STEP.fullmatch(event.name)
    ]
    work = kernels or by_category["cpu_op"]
    every = [*marks, *work, *launches]
    span = max(one.end for one in every) - min(one.ts for one in every) if every else 0.0
    return TraceSummary(
        _work(work, is_nested=not kernels),
        bool(kernels),
        _ranges([one for one in noted if not _STEP.fullmatch(one.name)], launching, kernels),
        span_us=span,
        idle_us=max(0.0, span - _busy_us(work)) if work else 0.0,
        launches=len(launches),
        launch_us=sum(event.dur for event in launches),
        steps=len(marks) or None,
    )


def _ranges(
    opened: Sequence[Event], launching: Sequence[Event], kernels: Sequence[Event]
) -> list[RangeTime]:
    """A kernel belongs to the ranges that were open on the host when it was launched.

    A replayed CUDA graph launches all its kernels at once, outside every range that was open when
    it was captured.
    """
    launched_in: dict[_Word, set[str]] = {
        event.args.correlation: {one.name for one in around}
        for event, around in _nested(opened, launching)
        if event.args.correlation is not None
    }
    device_us: dict[str, float] = defaultdict(float)
    for event in kernels:
        for name in launched_in.get(event.args.correlation, ()):
            device_us[name] += event.dur
    ranges = [
        RangeTime(one.name, one.calls, one.total_us, device_us[one.name]) for one in _work(opened)
    ]
    return sorted(ranges, key=lambda one: (-one.device_us, -one.host_us))


def _nested(
    opening: Sequence[Event], others: Sequence[Event] = ()
) -> Iterator[tuple[Event, list[Event]]]:
    """Each event with those opening ones that it lies in on its thread, the outermost first."""
    stacks: dict[object, list[Event]] = defaultdict(list)
    # An event that begins where others do, or longer ones, lies in these.
    marks = [(event.ts, -event.dur, event) for event in opening]
    marks += [(event.ts, 1.0, event) for event in others]
    for start, order, event in sorted(marks, key=lambda mark: mark[:2]):
        stack = stacks[event.pid, event.tid]
        while stack and stack[-1].end <= start:
            stack.pop()
        yield event, stack
        if order <= 0:
            stack.append(event)


def _busy_us(work: Sequence[Event]) -> float:
    """The time in which anything ran on the device, or in the process, that worked the most."""
    places: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for event in work:
        places[event.pid].append((event.ts, event.end))
    most = 0.0
    for spans in places.values():
        busy, reached = 0.0, -_LONGEST
        for start, end in sorted(spans):
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        most = max(most, busy)
    return most


def _work(events: Sequence[Event], *, is_nested: bool = False) -> list[WorkTime]:
    """Calls and times by name, the longest first; where nested, without what lies within."""
    spent: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, float] = defaultdict(float)
    for event in events:
        spent[event.name].append(event.dur)
    for event, around in _nested(events) if is_nested else ():
        if around:
            inside[around[-1].name] += event.dur
    work = [WorkTime(name, len(one), sum(one) - inside[name]) for name, one in spent.items()]
    return sorted(work, key=lambda one: -one.total_us)
