"""The tables that `profile` prints: ranges, the device's time, kernels; all per step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.explain.profilers import Traced
from asv_bench.explain.trace import DeviceTime, WorkTime
from asv_bench.output.contradictions import ADVICE
from asv_bench.output.table import Cell, Column, Table, digits, percent

SHOWN = 20
PLAUSIBLE_TRACE = 2.5
"""A part of a traced step over the whole step without a profiler, beyond which they disagree."""
NAME_WIDTH = 56
AS_IT_RUNS = "as it really runs"
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\w+)::")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_LAMBDA = re.compile(r"::\{lambda[^{}]*\}|::operator\b| const\b|\{lambda[^{}]*\}")


def window_tables(windows: Sequence[Traced]) -> list[Table]:
    """Tables of the traced windows: ranges of the first, device and kernels of the last.

    The last window is decoded as the engine really runs. If that is by graphs, the first window is
    the same steps decoded kernel by kernel, which shows each kernel's range; else both are one.
    """
    with_ranges, as_it_runs = windows[0], windows[-1]
    note = AS_IT_RUNS if len(windows) == 1 else "kernel by kernel, to see the ranges"
    tables = [range_table(with_ranges, note)]
    device = as_it_runs.summary.device
    if device is None:
        return [*tables, work_table("operator", as_it_runs.summary.operators, as_it_runs)]
    ranges = {entry.name: entry.ranges for entry in with_ranges.summary.kernels}
    kernels = work_table("kernel", as_it_runs.summary.kernels, as_it_runs, ranges)
    return [*tables, device_table(as_it_runs, device), kernels]


def contradictions(window: Traced) -> list[str]:
    """A sentence if a part of the traced steps is far longer than a whole untraced step.

    On a GPU the part is the time in which the device is busy.
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
    columns = [
        Column("range", "range", kind="name"),
        Column("calls", "calls", "a step", digits(2)),
        Column("host_us", "host", "µs a step", digits(1)),
        Column("kernels", "kernels", "a step", digits(2)),
        Column("device_us", "device", "µs a step", digits(1)),
    ]
    rows = [
        [
            entry.name,
            *(entry.calls / steps, entry.host_us / steps),
            *(entry.kernels / steps, entry.device_us / steps),
        ]
        for entry in summary.ranges
    ]
    outside = summary.outside
    if outside.calls:
        rows.append(["in no range", None, None, outside.calls / steps, outside.total_us / steps])
    if summary.device is None:
        columns, rows = columns[:3], [row[:3] for row in rows]
    caption = f"A range holds those within it. {_step_sentence(window)}"
    return Table(columns, rows, _title("Time per range", window, note), caption)


def device_table(window: Traced, device: DeviceTime) -> Table:
    """How much of a step the device is busy, and how much lies between kernels."""
    steps = window.decoded.steps
    columns = (
        Column("part", "of a step", kind="text"),
        Column("number", "number", "", digits(1)),
        Column("us", "µs a step", "", digits(1)),
        Column("share", "share", "", percent(1)),
    )
    gaps_us = device.span_us - device.busy_us
    rows = [
        [name, None if number is None else number / steps, us / steps, _share(us, device.span_us)]
        for name, number, us in (
            ("step, first kernel to last", None, device.span_us),
            ("a kernel or copy is running", device.kernels, device.busy_us),
            ("gaps between them", device.gaps, gaps_us),
        )
    ]
    caption = (
        "Tracing lengthens the gaps, and a kernel launched before its producer ends counts its "
        f"wait as its own time. {_step_sentence(window)}"
    )
    return Table(columns, rows, _title("Device time", window, AS_IT_RUNS), caption)


def work_table(
    kind: str,
    work: Sequence[WorkTime],
    window: Traced,
    ranges: Mapping[str, tuple[str, ...]] | None = None,
) -> Table:
    """Kernels by their time, or operators by their own time on the host.

    `ranges` says which range each kernel is launched in; None leaves that column out.
    """
    steps, total = window.decoded.steps, sum(entry.total_us for entry in work)
    rest = work[SHOWN:]
    shown = list(work[:SHOWN])
    if rest:
        calls, time_us = sum(one.calls for one in rest), sum(one.total_us for one in rest)
        shown.append(WorkTime(f"{len(rest)} more", calls, time_us))
    rows: list[list[Any]] = []
    for entry in shown:
        # Operators have short names; shortening C++ would drop their library.
        name = entry.name if ranges is None else short_kernel_name(entry.name, NAME_WIDTH)
        where = ", ".join((ranges or {}).get(entry.name, ())) or None
        rows.append(
            [
                Cell(entry.name, text=name),
                *(() if ranges is None else (where,)),
                entry.calls / steps,
                entry.total_us / entry.calls if entry.calls else None,
                entry.total_us / steps,
                _share(entry.total_us, total),
            ]
        )
    columns = (
        Column(kind, kind, kind="name"),
        *(() if ranges is None else (Column("range", "range", kind="text"),)),
        Column("calls", "calls", "a step", digits(2)),
        Column("us_a_call", "µs", "a call", digits(2)),
        Column("us_a_step", "µs", "a step", digits(2)),
        Column("share", "share", "", percent(1)),
    )
    return Table(columns, rows, _title(f"Time per {kind}", window, AS_IT_RUNS))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _title(what: str, window: Traced, note: str) -> str:
    return f"{what}: decode={window.decoded.decode}, {note} ({window.decoded.steps} steps)"


def _step_sentence(window: Traced) -> str:
    step_us = window.decoded.step_us
    return "" if step_us is None else f"Without a profiler a step takes {step_us:,.1f} µs."


def short_kernel_name(name: str, width: int) -> str:
    """The name of a kernel in at most `width` columns.

    A C++ name loses its namespaces, parameter lists and lambdas, then the end of its template
    arguments; any name that is still too long loses its middle.
    """
    if "::" in name or name.startswith("void "):
        name = _plain(name.removeprefix("void "))
    if len(name) <= width:
        return name
    opening = name.find("<")
    if 0 < opening < width - 3:
        return f"{name[: width - 2]}…>"
    tail = width // 3
    return f"{name[: width - tail - 1]}…{name[len(name) - tail :]}"


def _plain(name: str) -> str:
    name = name.replace("(anonymous namespace)::", "")
    # The innermost first: parameter lists hold parameter lists.
    while (without := _ARGUMENTS.sub("", name)) != name:
        name = without
    name = _NAMESPACE.sub("", _LAMBDA.sub("", name))
    return re.sub(r"\s+>", ">", name).strip()
