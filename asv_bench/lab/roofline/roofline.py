"""A decode step's kernels against the bandwidth of memory: bytes, time, and what lies between."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asv_bench.lab.roofline.step_timeline import StepKernel, TimedStep
from asv_bench.memory.floor import Role, RoleTraffic
from asv_bench.output.table import Column, Row, Table, digits, percent


@dataclass(frozen=True, slots=True)
class RooflineRow:
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


@dataclass(frozen=True, slots=True)
class Roofline:
    """One workload's step; times in microseconds, medians over the traced steps.

    `bytes` are what the step must move, `floor_us` what they take at the bandwidth measured, and
    `fraction` is that over the step. `unprofiled_us` is a step's wall time without a profiler,
    which lengthens gaps.
    """

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
    unprofiled_us: float
    bytes: float
    floor_us: float
    fraction: float


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

    def row(role: Role) -> RooflineRow:
        def total(value: Callable[[StepKernel], float]) -> float:
            return median(lambda step: sum(value(k) for k in step.kernels if k.role == role))

        names = Counter(k.name for step in steps for k in step.kernels if k.role == role)
        moved = traffic[role].total
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

    rows = [row(role) for role in traffic]
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


COLUMNS = (
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
    calls, traced = (
        sum(getattr(row, name) for row in result.rows) for name in ("calls", "traced_us")
    )
    rate = 1e6 * result.bytes / step
    rows += [
        (),
        ("step", None, calls, result.bytes, traced, step, 1.0, rate, result.fraction),
    ]
    return Table(
        COLUMNS,
        rows,
        f"{result.workload}: B={result.batch}, context {result.context:.0f}, {result.steps} steps",
        "Traced times include waiting for the kernel before (dependent launch); own times do not, "
        "and with the gaps add up to the step. Medians over steps, each line its own. "
        f"Measured read bandwidth {result.bytes_per_second / 1e12:.2f} TB/s. "
        f"Without a profiler a step takes {result.unprofiled_us:,.1f} µs.",
    )
