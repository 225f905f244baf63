"""A decode step's kernels against the bandwidth of memory: bytes, time, and what lies between."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asv_bench.lab.roofline.step_timeline import StepKernel, TimedStep
from asv_bench.lab.roofline.step_traffic import Traffic
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

    @property
    def bytes_per_second(self) -> float | None:
        """Bandwidth achieved over the own time; None where there is none."""
        return 1e6 * self.bytes / self.own_us if self.own_us else None

    @property
    def fraction(self) -> float | None:
        """Of the measured bandwidth. Above 1 what was moved came from a cache."""
        return self.floor_us / self.own_us if self.own_us else None


@dataclass(frozen=True, slots=True)
class Roofline:
    """One workload's step; times in microseconds, medians over the traced steps.

    `unprofiled_us` is a step's wall time without a profiler, which lengthens gaps.
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
    unprofiled_us: float | None

    @property
    def bytes(self) -> float:
        """What the step must move."""
        return sum(row.bytes for row in self.rows)

    @property
    def floor_us(self) -> float:
        """Microseconds that those bytes take at the bandwidth measured."""
        return sum(row.floor_us for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-ready values, derived figures included."""
        rows = [
            asdict(row) | {"bytes_per_second": row.bytes_per_second, "fraction": row.fraction}
            for row in self.rows
        ]
        sums = {"bytes": self.bytes, "floor_us": self.floor_us}
        return asdict(self) | sums | {"rows": rows, "fraction": self.floor_us / self.step_us}


def roofline(
    workload: str,
    batch: int,
    context: float,
    steps: Sequence[TimedStep],
    traffic: Mapping[str, Traffic],
    bytes_per_second: float,
    unprofiled_us: float | None,
) -> Roofline:
    """Put the timed steps of one workload against the bytes that each role must move."""

    def median(value: Callable[[TimedStep], float]) -> float:
        return statistics.median(value(step) for step in steps)

    def row(role: str) -> RooflineRow:
        def total(value: Callable[[StepKernel], float]) -> float:
            return median(lambda step: sum(value(k) for k in step.kernels if k.role == role))

        names = Counter(k.name for step in steps for k in step.kernels if k.role == role)
        moved = traffic[role].total
        return RooflineRow(
            role=role,
            kernels=tuple(name for name, _ in names.most_common()),
            calls=total(lambda kernel: 1),
            bytes=moved,
            traced_us=total(lambda kernel: kernel.traced_us),
            own_us=total(lambda kernel: kernel.own_us),
            floor_us=1e6 * moved / bytes_per_second,
        )

    return Roofline(
        workload=workload,
        batch=batch,
        context=context,
        steps=len(steps),
        bytes_per_second=bytes_per_second,
        rows=[row(role) for role in traffic],
        gaps_us=median(lambda step: sum(kernel.gap_us for kernel in step.kernels)),
        gaps=median(lambda step: sum(kernel.gap_us > 0 for kernel in step.kernels)),
        idle_between_us=median(lambda step: step.idle_before_us),
        work_between_us=median(lambda step: step.work_before_us),
        step_us=median(lambda step: step.period_us),
        unprofiled_us=unprofiled_us,
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
        ("step", None, calls, result.bytes, traced, step, 1.0, rate, result.floor_us / step),
    ]
    plain = result.unprofiled_us
    return Table(
        COLUMNS,
        rows,
        f"{result.workload}: B={result.batch}, context {result.context:.0f}, {result.steps} steps",
        "Traced times include waiting for the kernel before (dependent launch); own times do not, "
        "and with the gaps add up to the step. Medians over steps, each line its own. "
        f"Measured read bandwidth {result.bytes_per_second / 1e12:.2f} TB/s."
        + ("" if plain is None else f" Without a profiler a step takes {plain:,.1f} µs."),
    )
