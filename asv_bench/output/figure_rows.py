"""The figures of one commit as rows that a person reads: one row a workload or call."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from asv_bench.history.asv_results import Figure, Series
from asv_bench.output.table import MISSING, Cell, Column, Table, digits, percent, percentage
from asv_bench.workloads.named import WORKLOADS

CPU_MODEL = "gpt2-tiny"
METRICS = "metrics"
"""The group, and the one row, of what a subject of the user's measures."""
GROUPS = ("workloads", "decode step", "kernels", "host", "counters", METRICS)

_GROUP_OF_MODULE = {
    **dict.fromkeys(("scheduler", "streaming"), "workloads"),
    **{"decode": "decode step", "kernels": "kernels", "counters": "counters"},
}
"""All others are of the host."""
_COLUMN_OF_FIGURE = {
    **dict.fromkeys(("step_time", "time", "append"), "call"),
    **{name: name for name in ("tpot", "ttft", "itl")},
    **{"seconds_per_token": "tokens_per_s", "time_over_floor": "of_floor"},
}


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, to three digits."""
    units = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}
    unit = next((name for name, factor in units.items() if seconds * factor >= 1), "ns")
    value = seconds * units[unit]
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def figure_text(value: float | None, unit: str) -> str:
    """A benchmark's figure with its unit, seconds in the unit that reads best."""
    if value is None:
        return MISSING
    if unit == "bytes":
        return f"{value / 2**20:,.1f} MiB"
    return duration(value) if unit == "seconds" else f"{value:.4g} {unit}".rstrip()


def spread_text(spread: float) -> str:
    """A spread as a percentage, empty where there is none."""
    return "" if math.isnan(spread) else f"±{percentage(spread, 1)}"


def _counted(value: float) -> str:
    """As exact as it was counted, but for a step's share of what happens once a block."""
    return f"{round(value, 2):,}".removesuffix(".0")


COLUMNS = (
    Column("call", "step or call", show=duration),
    Column("tpot", "TPOT", show=duration),
    Column("ttft", "TTFT", show=duration),
    Column("itl", "ITL", show=duration),
    Column("tokens_per_s", "tokens/s", show=digits(0)),
    Column("of_floor", "of floor", show=percent(1)),
    Column("counted", "counted", show=_counted),
)
"""What a row can hold, in order; `call` is the time of a step or of one call."""


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure as it is shown: seconds, tokens per second, a fraction or a count, and its spread.

    `spread` is half the interquartile range over the median, NaN where too few processes ran.
    `unit` is of a metric.
    """

    value: float
    spread: float
    processes: int
    unit: str = ""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One workload or call: its group, its name, its batch, and what was measured of it."""

    group: str
    name: str
    batch: int | None
    figures: dict[str, ShownFigure]

    @property
    def title(self) -> str:
        """The name as a table shows it that has rows of several groups."""
        return f"decode, {self.name}" if self.group == "decode step" else self.name


def figure_rows(figures: Sequence[Figure]) -> list[FigureRow]:
    """Rows of one commit's figures, grouped as `GROUPS` and otherwise in their own order."""
    rows: dict[tuple[str, str, int | None], FigureRow] = {}
    for figure in figures:
        key, column = _place(figure)
        row = rows.setdefault(key, FigureRow(*key, figures={}))
        if not figure.failed:
            value = figure.median
            if column in ("tokens_per_s", "of_floor"):
                value = 1 / value if value else math.nan
            unit = figure.unit if figure.is_metric else ""
            row.figures[column] = ShownFigure(value, figure.spread, len(figure.samples), unit)
    for key, row in rows.items():
        step = row.figures.get("call")
        # A decode benchmark has no throughput of its own: each step gives one token a sequence.
        if key[0] == "decode step" and step is not None and row.batch:
            row.figures["tokens_per_s"] = replace(step, value=row.batch / step.value)
    return sorted(rows.values(), key=lambda row: GROUPS.index(row.group))


def _place(figure: Figure) -> tuple[tuple[str, str, int | None], str]:
    """The row and the column of a figure; metrics of a subject all stand in one row."""
    series = figure.series
    if figure.is_metric:
        return (METRICS, METRICS, None), series.benchmark
    group = _GROUP_OF_MODULE.get(series.benchmark.split(".")[0], "host")
    column = "counted" if group == "counters" else _COLUMN_OF_FIGURE.get(series.figure, "call")
    return (group, _name(series), _batch(series)), column


def columns_of(rows: Iterable[FigureRow]) -> list[Column]:
    """The columns that some row fills."""
    filled: set[str] = set()
    metrics: dict[str, str] = {}
    for row in rows:
        if row.group == METRICS:
            metrics |= {name: shown.unit for name, shown in row.figures.items()}
        else:
            filled |= row.figures.keys()
    of_metrics = [
        Column(name, name, show=partial(figure_text, unit=unit)) for name, unit in metrics.items()
    ]
    return [*(column for column in COLUMNS if column.key in filled), *of_metrics]


def figure_table(rows: Sequence[FigureRow], title: str) -> Table:
    """Rows as a table, a section a group; columns that no row fills are left out."""
    used = columns_of(rows)
    cells: list[Sequence[Any]] = []
    for _, group in groupby(rows, key=lambda row: row.group):
        cells += [()] if cells else []
        cells += (
            (row.title, row.batch, *(_cell(row.figures.get(one.key), one) for one in used))
            for row in group
        )
    columns = (
        Column("name", "workload or call", kind="text"),
        Column("batch", "batch", show=str),
        *(replace(column, parts=("median", "spread")) for column in used),
    )
    return Table(columns, cells, title, _caption(rows), notes="beside")


def _caption(rows: Sequence[FigureRow]) -> str:
    counts = {shown.processes for row in rows for shown in row.figures.values()}
    if not counts:
        return ""
    return (
        f"Median over {' to '.join(map(str, sorted({min(counts), max(counts)})))} processes each; "
        f"± is half the interquartile range. Step time is of a full batch that decodes."
    )


def _cell(shown: ShownFigure | None, column: Column) -> Cell:
    if shown is None:
        return Cell(None)
    values = shown.value, shown.spread
    return Cell(values, note=spread_text(shown.spread), text=column.show(shown.value))


def _workload_of(series: Series) -> str:
    """The workload that a benchmark runs: its class is called after it."""
    name = series.subject.rpartition(".")[2].lower()
    return "streaming" if name == "streaminglatency" else name


def _name(series: Series) -> str:
    module, _, subject = series.subject.partition(".")
    if module in ("scheduler", "streaming"):
        percentile = series.param("percentile") or "p50"
        workload = _workload_of(series)
        return workload if percentile == "p50" else f"{workload}, {percentile}"
    if series.subject == "decode.Decode":
        return f"context {series.param('context')}"
    words = [spaced(subject)]
    if series.figure not in _COLUMN_OF_FIGURE:
        words.append(series.figure.replace("_", " "))
    words += [value for name, value in series.params if name not in ("batch", "model")]
    return ", ".join(words)


def spaced(name: str) -> str:
    """A class name as words: `DecodeAttention` is "decode attention"."""
    return re.sub("[A-Z]", lambda found: f" {found[0].lower()}", name).strip()


def _batch(series: Series) -> int | None:
    batch = series.param("batch")
    if batch is not None:
        return int(batch) if batch.isdecimal() else None
    workload = WORKLOADS.get(_workload_of(series))
    if workload is None:
        return None
    return (workload.quick() if series.param("model") == CPU_MODEL else workload).resident
