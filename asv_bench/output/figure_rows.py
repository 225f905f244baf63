"""Figures of histories as a person reads them: with a unit and a spread, and a row for each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby

from asv_bench.history.asv_results import Figure
from asv_bench.output.table import MISSING, Cell, Column, Row, Table, percentage

METRICS = "metrics"
"""What all metrics of a user's subject are of."""


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


def spaced(name: str) -> str:
    """A class name as words: `DecodeAttention` is "decode attention"."""
    return re.sub("[A-Z]", lambda found: f" {found[0].lower()}", name).strip()


def place_of(figure: Figure) -> tuple[str, str]:
    """What a figure is of, and what it is called there; metrics are all of one thing."""
    series = figure.series
    if figure.is_metric:
        return METRICS, series.benchmark
    label = f", {series.label}" if series.label else ""
    return f"{spaced(series.subject.rpartition('.')[2])}{label}", series.figure.replace("_", " ")


def figure_table(figures: Sequence[Figure], title: str) -> Table:
    """A row for each figure of one commit, in sections by what they are of."""
    rows: list[Row] = []
    for _, section in groupby(sorted(figures, key=place_of), key=lambda one: place_of(one)[0]):
        rows += [()] if rows else []
        rows += map(_row, section)
    columns = (
        Column("name", "benchmark", kind="text"),
        Column("figure", "figure", kind="text"),
        Column("median", "median"),
        Column("spread", "spread", kind="data"),
        Column("unit", "unit", kind="data"),
        Column("processes", "processes"),
    )
    caption = (
        "Median over processes; ± is half the interquartile range. Step time is of a full batch "
        "that decodes."
    )
    return Table(columns, rows, title, caption, notes="beside")


def _row(figure: Figure) -> Row:
    text = "failed" if figure.failed else figure_text(figure.median, figure.unit)
    median = Cell(figure.median, note=spread_text(figure.spread), text=text)
    return (*place_of(figure), median, figure.spread, figure.unit, len(figure.samples))
