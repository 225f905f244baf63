"""A decode step's kernels against the bandwidth of memory: bytes, time, and what lies between.

Under programmatic dependent launch a kernel starts before its producer has ended, and its traced
time includes that wait. So traced times add up to more than the step. A kernel's own time begins at
its start, or at the end of all kernels before it if that is later. Own times and gaps add up to the
step exactly.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import DEVICE_CATEGORIES, Event, read_events
from asv_bench.explain.window import Window, torch_trace
from asv_bench.memory.floor import ModelConfig, Role, RoleTraffic, step_traffic
from asv_bench.output.table import Column, Row, Table, digits, percent

KERNEL_ROLES = {
    "embed_rows": Role.EMBED,
    "ring_attention": Role.ATTENTION,
    "row_attention": Role.WHOLE_ATTENTION,
    "decode_attention_append": Role.ATTENTION,
    "head_row": Role.HEAD,
    "head_stream": Role.HEAD,
    "head_tiles": Role.HEAD,
    "pick_tokens": Role.PICK,
}
"""Kernels of a fused step that have one role each."""

LINEAR_KERNELS = ("linear_row", "linear_tiles", "linear_stream")
"""Kernels of its linear maps, whose role follows from their place."""

_PRODUCTS = re.compile(r"nvjet|gemm|xmma|cutlass", re.IGNORECASE)
"""What names of cuBLAS's kernels for such maps hold."""

_BEFORE_A_MAP = re.compile(r"rms_norm_rows|memset", re.IGNORECASE)
_BEHIND_A_MAP = re.compile(r"gated_rows|statistics_rows|splitKreduce", re.IGNORECASE)
"""Launches beside a product of cuBLAS's: their time is that of the map after them, or before."""

_AFTER_ATTENTION = (
    Role.ATTENTION_OUT,
    Role.FEED_FORWARD_IN,
    Role.FEED_FORWARD_OUT,
    Role.ATTENTION_IN,
)


@dataclass(frozen=True, slots=True)
class StepKernel:
    """One kernel of a step, microseconds: as traced, its own, and the idle time before it."""

    name: str
    role: Role
    traced_us: float
    own_us: float
    gap_us: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of the window, microseconds."""

    kernels: tuple[StepKernel, ...]  # in the order they started
    idle_before_us: float  # idle time since the step before
    # Other kernels' and copies' own time since the step before, such as changed block tables.
    work_before_us: float

    @property
    def period_us(self) -> float:
        """From the end of the step before to this one's."""
        inside = sum(kernel.own_us + kernel.gap_us for kernel in self.kernels)
        return inside + self.idle_before_us + self.work_before_us


class RooflineRow(msgspec.Struct, frozen=True):
    """One role of a step, medians over steps, all its kernels together."""

    # What is done, and by which kernels.
    role: str
    kernels: tuple[str, ...]
    calls: float  # kernels a step
    bytes: float  # what they must move a step
    # Microseconds a step, as traced and without waiting for kernels before them.
    traced_us: float
    own_us: float
    floor_us: float  # microseconds that the bytes take at the bandwidth measured
    # Achieved over the own time; None where there is none.
    bytes_per_second: float | None
    # Of the measured bandwidth. Above 1 what was moved came from a cache.
    fraction: float | None


class Roofline(msgspec.Struct, frozen=True):
    """One workload's step, as records keep it; times in microseconds, medians over the steps."""

    workload: str
    batch: int
    context: float
    steps: int
    bytes_per_second: float
    rows: list[RooflineRow]
    gaps_us: float
    gaps: float
    idle_between_us: float
    work_between_us: float
    step_us: float
    unprofiled_us: float  # of a step without a profiler, which lengthens gaps
    bytes: float  # what the step must move
    floor_us: float  # what they take at the bandwidth measured
    fraction: float  # that over the step


def trace_roofline(window: Window, config: ModelConfig, bytes_per_second: float) -> Roofline:
    """Trace one window in a process of its own and set it against the bandwidth.

    Raises MeasurementFailed if the process failed or its trace holds no fused steps.
    """
    workload = window.shape()
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "window.trace.json.gz"
        decoded = torch_trace(window, path).decoded
        steps = timed_steps(read_events(path))
    if decoded.last_context is None:
        raise MeasurementFailed(
            f"the requests of {workload.name} ended within the window, so its context is not known."
        )
    # Tokens attended to, as a mean over steps, the last of which attended to the most.
    context = decoded.last_context - (len(steps) - 1) / 2
    traffic = step_traffic(
        config,
        dtype=window.dtype,
        batch_size=workload.resident,
        context=context,
        joins_attention=any(one.role is Role.WHOLE_ATTENTION for one in steps[0].kernels),
    )
    sizes = workload.name, workload.resident, context
    return roofline(*sizes, steps, traffic, bytes_per_second, decoded.step_us)


def timed_steps(events: Sequence[Event]) -> list[TimedStep]:
    """The steps of a trace without the first, which has no step before it.

    Work on other streams is left out: it overlaps with the step by design.

    Raises MeasurementFailed if the trace holds no two fused decode steps, or kernels whose role is
    not known.
    """
    work = [event for event in events if event.cat in DEVICE_CATEGORIES]
    streams = Counter(e.args.stream for e in work if KERNEL_ROLES.get(e.name) is Role.EMBED)
    if not streams:
        raise MeasurementFailed(
            "the trace holds no fused decode step (no kernel of its embedding); the roofline knows "
            "the fused kernels: use half precision on CUDA, and leave fuse on."
        )
    [(stream, _)] = streams.most_common(1)
    ordered = sorted((e for e in work if e.args.stream == stream), key=lambda e: e.ts)

    steps: list[TimedStep] = []
    opened: list[StepKernel] | None = None
    idle = other = 0.0
    reached = ordered[0].ts
    place = 0
    for event in ordered:
        gap, own = max(0.0, event.ts - reached), max(0.0, event.end - max(event.ts, reached))
        reached = max(reached, event.end)
        role = KERNEL_ROLES.get(event.name)
        if opened is None:
            if role is not Role.EMBED:
                idle, other = idle + gap, other + own
                continue
            # What lies before a step's first kernel is no part of the step.
            opened, idle, gap = [], idle + gap, 0.0
            place = len(_AFTER_ATTENTION) - 1
        if role in (Role.ATTENTION, Role.WHOLE_ATTENTION):
            place = 0
        elif role is None:
            role, place = _map_role(event.name, place)
        opened.append(StepKernel(event.name, role, event.dur, own, gap))
        if role is Role.PICK:
            steps.append(TimedStep(tuple(opened), idle, other))
            opened, idle, other = None, 0.0, 0.0
    if len(steps) < 2:
        raise MeasurementFailed(
            f"the trace holds {len(steps)} whole decode steps; gaps between steps need two or more."
        )
    return steps[1:]


def _map_role(name: str, place: int) -> tuple[Role, int]:
    """The role of a launch for a linear map at a place of a layer, and the next launch's place."""
    is_behind = _BEHIND_A_MAP.search(name) is not None
    role = _AFTER_ATTENTION[(place - is_behind) % len(_AFTER_ATTENTION)]
    if is_behind or _BEFORE_A_MAP.search(name):
        return role, place
    if name not in LINEAR_KERNELS and not _PRODUCTS.search(name):
        raise MeasurementFailed(
            f"the step holds a kernel {name!r} whose role is not known; name it in "
            f"asv_bench/lab/roofline.py."
        )
    return role, place + 1


def roofline(
    workload: str,
    batch: int,
    context: float,
    steps: Sequence[TimedStep],
    traffic: Mapping[Role, RoleTraffic],
    bytes_per_second: float,
    unprofiled_us: float,
) -> Roofline:
    """Put the timed steps of one workload against the bytes that each role must move."""

    def median(value: Callable[[TimedStep], float]) -> float:
        return statistics.median(value(step) for step in steps)

    def row(role: Role, moved: float) -> RooflineRow:
        def total(value: Callable[[StepKernel], float]) -> float:
            return median(lambda step: sum(value(k) for k in step.kernels if k.role == role))

        names = Counter(k.name for step in steps for k in step.kernels if k.role == role)
        own_us = total(lambda kernel: kernel.own_us)
        floor_us = 1e6 * moved / bytes_per_second
        return RooflineRow(
            role=role,
            kernels=tuple(name for name, _ in names.most_common()),
            calls=total(lambda kernel: 1),
            bytes=moved,
            traced_us=total(lambda kernel: kernel.traced_us),
            own_us=own_us,
            floor_us=floor_us,
            bytes_per_second=1e6 * moved / own_us if own_us else None,
            fraction=floor_us / own_us if own_us else None,
        )

    rows = [row(role, moved.total) for role, moved in traffic.items()]
    floor_us = sum(one.floor_us for one in rows)
    step_us = median(lambda step: step.period_us)
    return Roofline(
        workload=workload,
        batch=batch,
        context=context,
        steps=len(steps),
        bytes_per_second=bytes_per_second,
        rows=rows,
        gaps_us=median(lambda step: sum(kernel.gap_us for kernel in step.kernels)),
        gaps=median(lambda step: sum(kernel.gap_us > 0 for kernel in step.kernels)),
        idle_between_us=median(lambda step: step.idle_before_us),
        work_between_us=median(lambda step: step.work_before_us),
        step_us=step_us,
        unprofiled_us=unprofiled_us,
        bytes=sum(one.bytes for one in rows),
        floor_us=floor_us,
        fraction=floor_us / step_us,
    )


_COLUMNS = (
    Column("what", "what", kind="text"),
    Column("kernels", "kernel", kind="text", show=", ".join),
    Column("calls", "calls", show=digits(0)),
    Column("bytes", "MB", show=lambda count: f"{count / 1e6:,.2f}"),
    Column("traced_us", "traced", "µs", digits(1)),
    Column("own_us", "own", "µs", digits(1)),
    Column("share", "share", show=percent(1)),
    Column("bytes_per_second", "TB/s", show=lambda rate: f"{rate / 1e12:,.2f}"),
    Column("fraction", "of band-", "width", percent(1)),
)


def roofline_table(result: Roofline) -> Table:
    """One workload's roofline as a table."""
    step = result.step_us
    rows: list[Row] = [
        (
            *(row.role, row.kernels or None, row.calls, row.bytes, row.traced_us, row.own_us),
            *(row.own_us / step, row.bytes_per_second, row.fraction),
        )
        for row in result.rows
    ]
    rows.append(())
    for name, count, time_us in (
        ("gaps between kernels", result.gaps, result.gaps_us),
        ("other work between steps", None, result.work_between_us),
        ("gap between steps", None, result.idle_between_us),
    ):
        rows.append((name, None, count, None, None, time_us, time_us / step, None, None))
    calls, traced = sum(row.calls for row in result.rows), sum(row.traced_us for row in result.rows)
    rate = 1e6 * result.bytes / step
    whole = ("step", None, calls, result.bytes, traced, step, 1.0, rate, result.fraction)
    rows += [(), whole]
    return Table(
        _COLUMNS,
        rows,
        f"{result.workload}: B={result.batch}, context {result.context:.0f}, {result.steps} steps",
        "Traced times include waiting for the kernel before (dependent launch); own times do not, "
        "and with the gaps add up to the step. Medians over steps, each line its own. "
        f"Measured read bandwidth {result.bytes_per_second / 1e12:.2f} TB/s. "
        f"Without a profiler a step takes {result.unprofiled_us:,.1f} µs.",
    )
