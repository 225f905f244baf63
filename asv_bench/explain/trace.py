"""Read a torch profiler trace: time per range of the engine, per kernel, per operator.

A kernel belongs to the ranges that were open on the host when it was launched. A replayed CUDA
graph launches all its kernels at once, outside every range that was open when it was captured.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from asv_bench.output.stored_json import UnreadableFile, count, decoded, finite, shown, text

RANGES = (
    "schedule",
    "block_tables",
    "copies",
    "forward",
    "attention",
    "append",
    "sampling",
    "readback",
)
"""Ranges that the engine names, in the order in which a step opens them."""

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
_GZIP = b"\x1f\x8b"

Event: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RangeTime:
    """One named range over the whole trace, microseconds; ranges within it are included.

    `host_us` is time inside the range on the host. `device_us` is the time of the `kernels` that
    were launched inside it, whenever they ran.
    """

    name: str
    calls: int
    host_us: float
    device_us: float = 0.0
    kernels: int = 0


@dataclass(frozen=True, slots=True)
class WorkTime:
    """One kernel, or one operator without its callees, over the whole trace, microseconds.

    `ranges` are the innermost ranges that a kernel was launched in.
    """

    name: str
    calls: int
    total_us: float
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """The device from its first kernel or copy of the trace to its last, microseconds.

    `busy_us` is the time in which anything ran; gaps are the rest.
    """

    span_us: float
    busy_us: float
    kernels: int
    gaps: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Where the time of a trace went; each list is sorted, the largest first.

    `outside` is the work launched in no range; `device` is None without work.
    """

    ranges: list[RangeTime]
    kernels: list[WorkTime]
    operators: list[WorkTime]
    outside: WorkTime
    device: DeviceTime | None


def read_trace(path: Path) -> TraceSummary:
    """Summarize a Chrome trace written by the torch profiler, gzipped or plain."""
    return summarize_trace(read_events(path))


def read_events(path: Path) -> list[Event]:
    """The events of a Chrome trace, gzipped or plain, that have a duration.

    Raises
    ------
    UnreadableFile
        If it is no Chrome trace, or an event holds something else than its format says.
    """
    try:
        raw = path.read_bytes()
        content = decoded(gzip.decompress(raw) if raw.startswith(_GZIP) else raw, "replace")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UnreadableFile(f"{path.name} is no Chrome trace: {error}.") from None
    # The format knows both an object and a bare list of events.
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise UnreadableFile(f"{path.name} is no Chrome trace: it holds no list of events.")
    for number, event in enumerate(events):
        try:
            if not isinstance(event, dict):
                raise ValueError(f"{shown(event)} is no event")
            if _is_timed(event):
                _check(event)
        except ValueError as error:
            place = f"event {number} of {len(events)}"
            raise UnreadableFile(f"{path.name} is no Chrome trace: {place}: {error}.") from None
    return [event for event in events if _is_timed(event)]


def _is_timed(event: Event) -> bool:
    return event.get("ph") == "X" and "dur" in event


def _check(event: Event) -> None:
    """Raise ValueError unless an event holds what is read of it."""
    arguments = event.get("args", {})
    if not isinstance(arguments, dict):
        raise ValueError(f"its args are {shown(arguments)}")
    named = {**event, **{key: arguments.get(key) for key in ("correlation", "stream")}}
    for key in ("cat", "pid", "tid", "correlation", "stream"):
        if isinstance(named.get(key), list | dict):
            raise ValueError(f"its {key} is {shown(named[key])}")
    for key, check in (("name", text), ("ts", finite), ("dur", count)):
        try:
            check(event.get(key))
        except ValueError as error:
            raise ValueError(f"its {key}: {error}") from None


def summarize_trace(events: Sequence[Event]) -> TraceSummary:
    """Summarize the events of a Chrome trace ("X" events with `cat`, `name`, `ts`, `dur`)."""
    by_category: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            by_category[str(event.get("cat"))].append(event)
    host = _totals(by_category["user_annotation"])
    work = [event for category in DEVICE_CATEGORIES for event in by_category[category]]
    launches = [event for category in LAUNCH_CATEGORIES for event in by_category[category]]
    opened = [event for event in by_category["user_annotation"] if event["name"] in RANGES]
    ranges_of_launch = _ranges_of_launches(opened, launches)

    in_range = {name: RangeTime(name, *host[name]) for name in RANGES if name in host}
    outside = WorkTime("outside", 0, 0.0)
    innermost: dict[str, set[str]] = defaultdict(set)
    for event in work:
        duration = float(event["dur"])
        names = ranges_of_launch.get(_correlation(event), ())
        for name in set(names):
            before = in_range[name]
            in_range[name] = replace(
                before, device_us=before.device_us + duration, kernels=before.kernels + 1
            )
        if names:
            innermost[event["name"]].add(names[-1])
        else:
            outside = replace(
                outside, calls=outside.calls + 1, total_us=outside.total_us + duration
            )
    kernels = [
        replace(entry, ranges=tuple(sorted(innermost[entry.name], key=RANGES.index)))
        for entry in _sorted_work(_totals(work))
    ]
    return TraceSummary(
        sorted(in_range.values(), key=lambda entry: (-entry.device_us, -entry.host_us)),
        kernels,
        _sorted_work(_self_totals(by_category["cpu_op"])),
        outside,
        _device_time(work),
    )


def _ranges_of_launches(
    opened: Sequence[Event], launches: Sequence[Event]
) -> dict[Any, tuple[str, ...]]:
    """The ranges that each launch lies in, the outermost first, by its correlation."""
    found: dict[Any, tuple[str, ...]] = {}
    stacks: dict[Any, list[Event]] = defaultdict(list)
    # A range that begins where a launch does, or another range that is longer, holds it.
    marks = [(float(event["ts"]), 0, -float(event["dur"]), event) for event in opened]
    marks += [(float(event["ts"]), 1, 0.0, event) for event in launches]
    for start, is_launch, _, event in sorted(marks, key=lambda mark: mark[:3]):
        stack = stacks[event.get("pid"), event.get("tid")]
        while stack and float(stack[-1]["ts"]) + float(stack[-1]["dur"]) <= start:
            stack.pop()
        if is_launch:
            found[_correlation(event)] = tuple(entry["name"] for entry in stack)
        else:
            stack.append(event)
    found.pop(None, None)
    return found


def _correlation(event: Event) -> Any:
    """The number that a kernel shares with the call that launched it; None if unknown."""
    return event.get("args", {}).get("correlation")


def _device_time(work: Sequence[Event]) -> DeviceTime | None:
    if not work:
        return None
    intervals = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in work
    )
    first, reached = intervals[0]
    busy, gaps = reached - first, 0
    for start, end in intervals[1:]:
        gaps += start > reached
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return DeviceTime(reached - first, busy, len(work), gaps)


def _totals(events: Sequence[Event]) -> dict[str, tuple[int, float]]:
    totals: dict[str, tuple[int, float]] = {}
    for event in events:
        calls, total = totals.get(event["name"], (0, 0.0))
        totals[event["name"]] = (calls + 1, total + float(event["dur"]))
    return totals


def _self_totals(events: Sequence[Event]) -> dict[str, tuple[int, float]]:
    """Calls and time per name, without the time of the events nested in them."""
    totals: dict[str, tuple[int, float]] = {}
    open_events: dict[Any, list[tuple[str, float]]] = defaultdict(list)

    def add(name: str, calls: int, time: float) -> None:
        before = totals.get(name, (0, 0.0))
        totals[name] = (before[0] + calls, before[1] + time)

    # Longer first where two start together, so that the outer one is opened before the inner.
    for event in sorted(events, key=lambda entry: (float(entry["ts"]), -float(entry["dur"]))):
        start, duration = float(event["ts"]), float(event["dur"])
        stack = open_events[event.get("pid"), event.get("tid")]
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            add(stack[-1][0], 0, -duration)
        add(event["name"], 1, duration)
        stack.append((event["name"], start + duration))
    return totals


def _sorted_work(totals: Mapping[str, tuple[int, float]]) -> list[WorkTime]:
    work = [WorkTime(name, calls, total) for name, (calls, total) in totals.items()]
    return sorted(work, key=lambda entry: -entry.total_us)
