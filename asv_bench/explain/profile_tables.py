"""The tables that `profile` prints: ranges, and kernels with the device's time; per step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.explain.traced import Traced
from asv_bench.output.table import Cell, Column, Row, Table, digits, percent
from asv_bench.words import ADVICE

SHOWN = 20
PLAUSIBLE_TRACE = 2.5
"""A part of a traced step over the whole step without a profiler, beyond which they disagree."""
NAME_WIDTH = 56
_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\w+)::")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_LAMBDA = re.compile(r"::\{lambda[^{}]*\}|::operator\b| const\b|\{lambda[^{}]*\}")


def window_tables(windows: Sequence[Traced]) -> list[Table]:
    """The ranges of the first traced window, and the kernels or operators of the last.

    The last window is decoded as the engine really runs. If that is by graphs, the first window is
    the same steps decoded kernel by kernel, which shows each kernel's range; else both are one.
    """
    first, last = windows[0], windows[-1]
    as_it_runs = "as it really runs"
    note = as_it_runs if len(windows) == 1 else "kernel by kernel, to see the ranges"
    ranges = {entry.name: entry.ranges for entry in first.summary.kernels}
    return [_range_table(first, note), _work_table(last, as_it_runs, ranges)]


def contradictions(window: Traced) -> list[str]:
    """A sentence if a part of the traced steps is far longer than a whole untraced step.

    On a GPU the part is the time in which the device is busy.
    """
    step_us, steps, summary = window.decoded.step_us, window.decoded.steps, window.summary
    parts = [(f"the range {one.name}", one.host_us / steps) for one in summary.ranges]
    if summary.device is not None:
        parts = [("a kernel or copy is running", summary.device.busy_us / steps)]
    part, part_us = max(parts, key=lambda one: one[1], default=("", 0.0))
    if part_us <= PLAUSIBLE_TRACE * step_us:
        return []
    return [
        f"Warning: {part} takes {part_us:,.1f} µs of a traced step, and a whole step without a "
        f"profiler {step_us:,.1f} µs: tracing makes steps longer, but not so much. {ADVICE}"
    ]


def _table(
    what: str,
    window: Traced,
    note: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    caption: str,
) -> Table:
    decoded = window.decoded
    caption = f"{caption} Without a profiler a step takes {decoded.step_us:,.1f} µs.".strip()
    title = f"{what}: decode={decoded.decode}, {note} ({decoded.steps} steps)"
    return Table(columns, rows, title, caption)


def _range_table(window: Traced, note: str) -> Table:
    """Host and device time of each range, with the ranges within it."""
    summary, steps = window.summary, window.decoded.steps
    outside = summary.outside
    rows: list[tuple[Any, ...]] = [
        (one.name, one.calls, one.host_us, one.kernels, one.device_us) for one in summary.ranges
    ]
    if outside.calls:
        rows.append(("in no range", None, None, outside.calls, outside.total_us))
    columns = [
        Column("range", "range", kind="name"),
        Column("calls", "calls", "a step", digits(2)),
        Column("host_us", "host", "µs a step", digits(1)),
        Column("kernels", "kernels", "a step", digits(2)),
        Column("device_us", "device", "µs a step", digits(1)),
    ][: 3 if summary.device is None else 5]
    each = [[name, *(_over(one, steps) for one in row)][: len(columns)] for name, *row in rows]
    return _table("Time per range", window, note, columns, each, "A range holds those within it.")


def _work_table(window: Traced, note: str, ranges: Mapping[str, tuple[str, ...]]) -> Table:
    """Kernels by their time and the ranges that launch them; operators where no device worked."""
    work, steps, device = window.summary.work, window.decoded.steps, window.summary.device
    kind = "operator" if device is None else "kernel"
    columns = [
        Column(kind, kind, kind="name"),
        *([] if device is None else [Column("range", "range", kind="text")]),
        Column("calls", "calls", "a step", digits(2)),
        Column("us_a_call", "µs", "a call", digits(2)),
        Column("us_a_step", "µs", "a step", digits(2)),
        Column("share", "share", "", percent(1)),
    ]
    figures = [(one.name, one.calls, one.total_us) for one in work]
    total, rest = sum(us for _, _, us in figures), figures[SHOWN:]
    if rest:
        more = sum(calls for _, calls, _ in rest), sum(us for _, _, us in rest)
        figures[SHOWN:] = [(f"{len(rest)} more", *more)]
    rows: list[Row] = []
    for name, calls, us in figures:
        # Operators have short names; shortening C++ would drop their library.
        text = name if device is None else short_kernel_name(name, NAME_WIDTH)
        where = [] if device is None else [", ".join(ranges.get(name, ())) or None]
        times = (calls / steps, _over(us, calls), us / steps, _over(us, total))
        rows.append([Cell(name, text=text), *where, *times])
    if device is None:
        return _table("Time per operator", window, note, columns, rows, "")
    span = device.span_us
    rows.append(())
    rows += [
        [name, None, number / steps, None, us / steps, _over(us, span)]
        for name, number, us in (
            ("a kernel or copy is running", device.kernels, device.busy_us),
            ("gaps between them", device.gaps, span - device.busy_us),
        )
    ]
    caption = (
        f"Below the line: of {span / steps:,.1f} µs a step, first kernel to last. Tracing makes "
        "gaps longer, and a kernel launched before its producer ends counts its wait as its own."
    )
    return _table("Time per kernel", window, note, columns, rows, caption)


def _over(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def short_kernel_name(name: str, width: int) -> str:
    """The name of a kernel in at most `width` columns.

    A C++ name loses its namespaces, parameter lists and lambdas, then the end of its template
    arguments; any name that is still too long loses its middle.
    """
    if "::" in name or name.startswith("void "):
        name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        # The innermost first: parameter lists hold parameter lists.
        while (without := _ARGUMENTS.sub("", name)) != name:
            name = without
        name = _NAMESPACE.sub("", _LAMBDA.sub("", name))
        name = re.sub(r"\s+>", ">", name).strip()
    if len(name) <= width:
        return name
    opening = name.find("<")
    if 0 < opening < width - 3:
        return f"{name[: width - 2]}…>"
    tail = width // 3
    return f"{name[: width - tail - 1]}…{name[len(name) - tail :]}"
