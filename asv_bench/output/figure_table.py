"""The table that `bench` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from asv_bench.output.console import add_figure_columns
from asv_bench.output.figure_rows import COLUMNS, TITLES, Row

MISSING = "-"

WIDE = 112
"""Columns from which a value and its spread fit beside each other; below, the spread goes under."""
MOST_BESIDE = 5
"""Figures of a row beyond which even that is too narrow."""


def figure_table(rows: Sequence[Row], title: str, width: int = WIDE) -> Table:
    """Rows as a table, a section a group; columns that no row fills are left out.

    `width` is the columns of the terminal it has to fit.
    """
    used = [column for column in COLUMNS if any(column in row.readings for row in rows)]
    gap = " " if width >= WIDE and len(used) <= MOST_BESIDE else "\n"
    style = box.HEAVY_HEAD if width >= WIDE else box.SIMPLE_HEAD
    table = Table(title=title, title_justify="left", box=style)
    table.add_column("workload or call")
    add_figure_columns(table, "batch", *(TITLES[column] for column in used))
    group = rows[0].group if rows else ""
    for row in rows:
        if row.group != group:
            table.add_section()
            group = row.group
        name = f"decode, {row.name}" if row.group == "decode step" else row.name
        batch = MISSING if row.batch is None else str(row.batch)
        table.add_row(name, batch, *(_cell(row, column, gap) for column in used))
    processes = [reading.processes for row in rows for reading in row.readings.values()]
    if processes:
        count = (
            f"{min(processes)}"
            if min(processes) == max(processes)
            else (f"{min(processes)} to {max(processes)}")
        )
        table.caption = (
            f"Median over {count} processes each; ± is half the interquartile range. Step time is "
            f"of a full batch that decodes."
        )
        table.caption_justify = "left"
    return table


def _cell(row: Row, column: str, gap: str) -> Text:
    reading = row.readings.get(column)
    if reading is None:
        return Text(MISSING, style="dim")
    cell = Text(reading.text(column))
    if reading.spread_text:
        cell.append(f"{gap}{reading.spread_text}", style="dim")
    return cell
