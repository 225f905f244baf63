"""The tables that `profile` prints: ranges, the device's time, kernels; all per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from asv_bench.explain.kernel_names import short_kernel_name
from asv_bench.explain.profilers import Traced
from asv_bench.explain.trace import DeviceTime, WorkTime
from asv_bench.output.console import add_figure_columns
from asv_bench.output.contradictions import ADVICE
from asv_bench.output.table import MISSING
from asv_bench.output.tables import figure, percent

SHOWN = 20
PLAUSIBLE_TRACE = 2.5
"""A part of a traced step over the whole step without a profiler, beyond which they disagree."""
NAME_WIDTH = 56
AS_IT_RUNS = "as it really runs"


def window_tables(windows: Sequence[Traced]) -> list[Table]:
    """Tables of the traced windows: ranges of the first, device and kernels of the last.

    The last window is decoded as the engine really runs. Where that is by graphs, the first one is
    the same steps kernel by kernel, which puts the kernels in their ranges; else they are one.
    """
    with_ranges, as_it_runs = windows[0], windows[-1]
    note = AS_IT_RUNS if len(windows) == 1 else "kernel by kernel, to see the ranges"
    tables = [range_table(with_ranges, note)]
    device = as_it_runs.summary.device
    if device is None:
        return [*tables, operator_table(as_it_runs)]
    ranges = {entry.name: entry.ranges for entry in with_ranges.summary.kernels}
    return [*tables, device_table(as_it_runs, device), kernel_table(as_it_runs, ranges)]


def contradictions(window: Traced) -> list[str]:
    """A sentence where a part of the traced steps is far longer than a whole step without a trace.

    On a GPU a step's length is the device's, and the time in which it is busy is compared.
    """
    step_us, steps = window.decoded.step_us, window.decoded.steps
    summary = window.summary
    if step_us is None:
        return []
    if summary.device is not None:
        part, part_us = "a kernel or copy is running", summary.device.busy_us / steps
    elif summary.ranges:
        longest = max(summary.ranges, key=lambda entry: entry.host_us)
        part, part_us = f"the range {longest.name}", longest.host_us / steps
    else:
        return []
    if part_us <= PLAUSIBLE_TRACE * step_us:
        return []
    return [
        f"Warning: {part} takes {part_us:,.1f} µs of a traced step, and a whole step without a "
        f"profiler {step_us:,.1f} µs: tracing makes steps longer, but not so much. {ADVICE}"
    ]


def range_table(window: Traced, note: str) -> Table:
    """Host and device time of each range, with the ranges within it."""
    summary, steps = window.summary, window.decoded.steps
    table = Table(title=_title("Time per range", window, note), title_justify="left")
    table.add_column("range", no_wrap=True)
    add_figure_columns(table, "calls\na step", "host\nµs a step")
    if summary.device is not None:
        add_figure_columns(table, "kernels\na step", "device\nµs a step")
    for entry in summary.ranges:
        host = [figure(entry.calls / steps, 2), figure(entry.host_us / steps, 1)]
        device = [figure(entry.kernels / steps, 2), figure(entry.device_us / steps, 1)]
        table.add_row(entry.name, *host, *(device if summary.device else ()))
    outside = summary.outside
    if outside.calls:
        count, time = figure(outside.calls / steps, 2), figure(outside.total_us / steps, 1)
        table.add_row("in no range", MISSING, MISSING, count, time)
    table.caption = f"A range holds those within it. {_step_sentence(window)}"
    table.caption_justify = "left"
    return table


def device_table(window: Traced, device: DeviceTime) -> Table:
    """How much of a step the device is busy, and how much lies between kernels."""
    steps = window.decoded.steps
    title = _title("Device time", window, AS_IT_RUNS)
    table = Table(title=title, title_justify="left")
    table.add_column("of a step", overflow="fold")
    add_figure_columns(table, "number", "µs a step", "share")
    gaps_us = device.span_us - device.busy_us
    for name, number, time_us in (
        ("step, first kernel to last", None, device.span_us),
        ("a kernel or copy is running", device.kernels, device.busy_us),
        ("gaps between them", device.gaps, gaps_us),
    ):
        count = MISSING if number is None else figure(number / steps, 1)
        share = percent(time_us / device.span_us if device.span_us else None)
        table.add_row(name, count, figure(time_us / steps, 1), share)
    table.caption = (
        "Tracing lengthens the gaps, and a kernel launched before its producer ends counts its "
        f"wait as its own time. {_step_sentence(window)}"
    )
    table.caption_justify = "left"
    return table


def kernel_table(window: Traced, ranges: Mapping[str, tuple[str, ...]]) -> Table:
    """Kernels by their time; `ranges` says which range each kernel is launched in."""
    title = _title("Time per kernel", window, AS_IT_RUNS)
    return _work_table(title, "kernel", window.summary.kernels, window.decoded.steps, ranges)


def operator_table(window: Traced) -> Table:
    """Operators by their own time on the host, for a window without a device."""
    title = _title("Time per operator", window, AS_IT_RUNS)
    return _work_table(title, "operator", window.summary.operators, window.decoded.steps, None)


def _work_table(
    title: str,
    kind: str,
    work: Sequence[WorkTime],
    steps: int,
    ranges: Mapping[str, tuple[str, ...]] | None,
) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(kind, no_wrap=True)
    if ranges is not None:
        table.add_column("range", overflow="fold", min_width=12)
    add_figure_columns(table, "calls\na step", "µs\na call", "µs\na step", "share")
    total = sum(entry.total_us for entry in work)

    def add(name: str, where: str, calls: int, time_us: float) -> None:
        table.add_row(
            Text(name),
            *(() if ranges is None else (where,)),
            figure(calls / steps, 2),
            figure(time_us / calls if calls else None, 2),
            figure(time_us / steps, 2),
            percent(time_us / total if total else None),
        )

    for entry in work[:SHOWN]:
        where = ", ".join((ranges or {}).get(entry.name, ())) or MISSING
        # Operators have short names, and lose their library to what shortens C++.
        name = entry.name if ranges is None else short_kernel_name(entry.name, NAME_WIDTH)
        add(name, where, entry.calls, entry.total_us)
    rest = work[SHOWN:]
    if rest:
        calls, time_us = sum(one.calls for one in rest), sum(one.total_us for one in rest)
        add(f"{len(rest)} more", MISSING, calls, time_us)
    return table


def _title(what: str, window: Traced, note: str) -> str:
    return f"{what}: decode={window.decoded.decode}, {note} ({window.decoded.steps} steps)"


def _step_sentence(window: Traced) -> str:
    step_us = window.decoded.step_us
    return "" if step_us is None else f"Without a profiler a step takes {step_us:,.1f} µs."
