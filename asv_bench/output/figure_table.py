"""The table that `bench` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asv_bench.output.figure_rows import Reading, Row, columns_of
from asv_bench.output.table import Cell, Column, Table
from asv_bench.output.table import Row as Cells


def figure_table(rows: Sequence[Row], title: str) -> Table:
    """Rows as a table, a section a group; columns that no row fills are left out."""
    used = columns_of(rows)
    cells: list[Cells] = []
    group = rows[0].group if rows else ""
    for row in rows:
        if row.group != group:
            cells.append(())
            group = row.group
        cells.append(
            (row.title, row.batch, *(_cell(row.readings.get(one.key), one) for one in used))
        )
    columns = (
        Column("name", "workload or call", kind="text"),
        Column("batch", "batch", show=str),
        *(replace(column, parts=("median", "spread")) for column in used),
    )
    return Table(columns, cells, title, _caption(rows), notes="beside")


def _caption(rows: Sequence[Row]) -> str:
    processes = [reading.processes for row in rows for reading in row.readings.values()]
    if not processes:
        return ""
    least, most = min(processes), max(processes)
    return (
        f"Median over {least if least == most else f'{least} to {most}'} processes each; ± is half "
        f"the interquartile range. Step time is of a full batch that decodes."
    )


def _cell(reading: Reading | None, column: Column) -> Cell:
    if reading is None:
        return Cell(None)
    values = reading.value, reading.spread
    return Cell(values, note=reading.spread_text, text=column.show(reading.value))
