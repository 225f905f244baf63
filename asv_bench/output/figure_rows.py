"""Figures of histories as a person reads them: with a unit and a spread, and a row for each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import itemgetter

from asv_bench.history.asv_results import Figure
from asv_bench.output.table import MISSING, Cell, Column, Row, Table, percentage

METRICS = "metrics"
"""What all metrics of a user's subject are of."""
_SHORT = {"tpot": "TPOT", "ttft": "TTFT", "itl": "ITL"}


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


def words_of(figure: Figure) -> tuple[str, str, str]:
    """What a figure is of, what it is called there, and its parameters; metrics have a name only.

    A class name is said as words: `DecodeAttention` is "decode attention".
    """
    series = figure.series
    if figure.better:
        return METRICS, series.benchmark, ""
    owner, _, method = series.benchmark.rpartition(".")
    words = re.sub("[A-Z]", lambda found: f" {found[0].lower()}", owner.rpartition(".")[2])
    name = method.removeprefix("track_")
    return words.strip(), _SHORT.get(name) or name.replace("_", " "), series.label


def figure_table(figures: Sequence[Figure], title: str) -> Table:
    """A row for each figure of one commit."""
    columns = (
        Column("name", "benchmark", kind="text"),
        Column("figure", "figure", kind="text"),
        Column("median", "median"),
        Column("spread", "spread", show=spread_text),
        Column("unit", "unit", kind="data"),
        Column("processes", "processes"),
    )
    rows: list[Row] = []
    for one in figures:
        group, name, label = words_of(one)
        place = f"{group}, {label}" if label else group
        text = "failed" if one.failed else figure_text(one.median, one.unit)
        median = Cell(one.median, text=text)
        rows.append((place, name, median, one.spread, one.unit, len(one.samples)))
    caption = "Median over processes; ± is half the interquartile range."
    return Table(columns, sorted(rows, key=itemgetter(0, 1)), title, caption)
