"""Read a torch profiler trace: time per range of the engine, per kernel, per operator."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class RangeTime:
    """One named range over the whole trace, microseconds.

    `host_us` is time inside the range on the host, ranges within it included; `device_us` spans
    the range's work on the device from its first kernel to its last, None where there was none.
    """

    name: str
    calls: int
    host_us: float
    device_us: float | None


@dataclass(frozen=True, slots=True)
class WorkTime:
    """One kernel, or one operator without its callees, over the whole trace, microseconds."""

    name: str
    calls: int
    total_us: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Where the time of a trace went; each list is sorted, the largest first."""

    ranges: list[RangeTime]
    kernels: list[WorkTime]
    operators: list[WorkTime]

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON-ready values."""
        return asdict(self)


def read_trace(path: Path) -> TraceSummary:
    """Summarize a Chrome trace written by the torch profiler, gzipped or plain."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return summarize_trace(json.loads(raw)["traceEvents"])


def summarize_trace(events: Sequence[Mapping[str, Any]]) -> TraceSummary:
    """Summarize the events of a Chrome trace ("X" events with `cat`, `name`, `ts`, `dur`)."""
    complete = [event for event in events if event.get("ph") == "X"]
    by_category: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in complete:
        by_category[str(event.get("cat"))].append(event)
    host = _totals(by_category["user_annotation"])
    device = _totals(by_category["gpu_user_annotation"])
    ranges = [
        RangeTime(name, host[name][0], host[name][1], device[name][1] if name in device else None)
        for name in RANGES
        if name in host
    ]
    work = [event for category in DEVICE_CATEGORIES for event in by_category[category]]
    return TraceSummary(
        sorted(ranges, key=lambda entry: -entry.host_us),
        _sorted_work(_totals(work)),
        _sorted_work(_self_totals(by_category["cpu_op"])),
    )


def _totals(events: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    totals: dict[str, tuple[int, float]] = {}
    for event in events:
        calls, total = totals.get(event["name"], (0, 0.0))
        totals[event["name"]] = (calls + 1, total + float(event["dur"]))
    return totals


def _self_totals(events: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
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
