"""A decode step's kernels against the bandwidth of memory: bytes, time, and what lies between."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from asv_bench.lab.roofline.step_timeline import StepKernel, TimedStep
from asv_bench.lab.roofline.step_traffic import Traffic
from asv_bench.output.console import add_figure_columns
from asv_bench.output.table import MISSING
from asv_bench.output.tables import figure, percent


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One role of a step, medians over steps, all its kernels together.

    Attributes
    ----------
    role, kernels
        What is done, and by which kernels.
    calls
        Kernels a step.
    bytes
        What they must move a step.
    traced_us, own_us
        Microseconds a step, as traced and without waiting for kernels before them.
    floor_us
        Microseconds that the bytes take at the bandwidth measured.
    """

    role: str
    kernels: tuple[str, ...]
    calls: float
    bytes: float
    traced_us: float
    own_us: float
    floor_us: float

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
        derived = [
            {"bytes_per_second": row.bytes_per_second, "fraction": row.fraction}
            for row in self.rows
        ]
        return {
            **asdict(self),
            "rows": [asdict(row) | more for row, more in zip(self.rows, derived, strict=True)],
            "bytes": self.bytes,
            "floor_us": self.floor_us,
            "fraction": self.floor_us / self.step_us,
        }


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


def roofline_table(result: Roofline) -> Table:
    """One workload's roofline as a table."""
    table = Table(
        title=f"{result.workload}: B={result.batch}, context {result.context:.0f}, "
        f"{result.steps} steps",
        title_justify="left",
    )
    table.add_column("what", overflow="fold")
    table.add_column("kernel", overflow="fold")
    add_figure_columns(
        table,
        *("calls", "MB", "traced\nµs", "own\nµs", "share", "TB/s", "of band-\nwidth"),
    )
    for row in result.rows:
        rate = row.bytes_per_second
        table.add_row(
            row.role,
            ", ".join(row.kernels) or MISSING,
            figure(row.calls, 0),
            figure(row.bytes / 1e6, 2),
            figure(row.traced_us, 1),
            figure(row.own_us, 1),
            percent(row.own_us / result.step_us),
            figure(None if rate is None else rate / 1e12, 2),
            percent(row.fraction),
        )
    table.add_section()
    for name, count, time_us in (
        ("gaps between kernels", result.gaps, result.gaps_us),
        ("other work between steps", None, result.work_between_us),
        ("gap between steps", None, result.idle_between_us),
    ):
        share = percent(time_us / result.step_us)
        cells = (figure(count, 0), MISSING, MISSING, figure(time_us, 1), share, MISSING, MISSING)
        table.add_row(name, MISSING, *cells)
    table.add_section()
    table.add_row(
        "step",
        MISSING,
        figure(sum(row.calls for row in result.rows), 0),
        figure(result.bytes / 1e6, 2),
        figure(sum(row.traced_us for row in result.rows), 1),
        figure(result.step_us, 1),
        percent(1.0),
        figure(result.bytes / result.step_us / 1e6, 2),
        percent(result.floor_us / result.step_us),
    )
    plain = result.unprofiled_us
    table.caption = (
        "Traced times include waiting for the kernel before (dependent launch); own times do not, "
        "and with the gaps add up to the step. Medians over steps, each line its own. "
        f"Measured read bandwidth {result.bytes_per_second / 1e12:.2f} TB/s."
        + ("" if plain is None else f" Without a profiler a step takes {plain:,.1f} µs.")
    )
    table.caption_justify = "left"
    return table
