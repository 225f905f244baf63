"""The one table of all commands: raw values once, shown for people and written for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rich.table import Table as RichTable
from rich.text import Text

from asv_bench.output.markdown import inline

MISSING = "-"
"""What is shown where there is no value."""


def plain(value: Any) -> str:
    """Text as it is, counts with separators, other figures to four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def digits(count: int) -> Callable[[float], str]:
    """Show figures with so many digits after the point."""
    return lambda value: f"{value:,.{count}f}"


def percent(count: int, *, signed: bool = False) -> Callable[[float], str]:
    """Show fractions as percentages with so many digits after the point."""
    return lambda value: percentage(value, count, signed=signed)


def interval(count: int) -> Callable[[tuple[float, float]], str]:
    """Show two fractions as percentages, "-1.0 % to +2.0 %"."""
    return lambda bounds: " to ".join(percentage(one, count, signed=True) for one in bounds)


def percentage(fraction: float, count: int, *, signed: bool = False) -> str:
    """A fraction as a percentage, with its sign where that is asked for."""
    if math.isinf(fraction):
        return "∞" if fraction > 0 else "-∞"
    return f"{100 * fraction:{'+' if signed else ''}.{count}f} %"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds and how its values are shown."""

    key: str  # its name in CSV and JSON
    title: str  # its name for people
    unit: str = ""  # shown below the title
    # Makes text of a value; it is not asked where there is none (None or NaN).
    show: Callable[[Any], str] = plain
    # "figure": aligned to the right, never broken. "name": never broken. "text": may be
    # broken between words. "data": only in CSV and JSON.
    kind: Literal["figure", "name", "text", "data"] = "figure"
    # Where values are tuples: the names of their parts. Each part is a column of its own in
    # CSV and JSON, called `key_part`.
    parts: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Its names in CSV and JSON."""
        return tuple(f"{self.key}_{part}" for part in self.parts) or (self.key,)

    def text_of(self, cell: Cell) -> Text:
        """A cell as people see it, its note below it."""
        text = cell.text
        if text is None:
            text = MISSING if _is_missing(cell.value) else self.show(cell.value)
        return Text.assemble((text, cell.style), (f"\n{cell.note}" if cell.note else "", "dim"))


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that is shown with a style, with a note, or otherwise than its column says."""

    value: Any  # what CSV and JSON get
    style: str = ""  # of its text on a terminal, in rich's words
    note: str = ""  # small print below the text, which stays alone in CSV and JSON
    text: str | None = None  # what is shown; None: as the column shows its values


Row: TypeAlias = Sequence[Any]
"""A value or a `Cell` for each column. An empty row is a line between sections."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns."""

    columns: Sequence[Column]  # the first holds the rows' names
    rows: Sequence[Row]  # as long as `columns`, or empty: a line between sections
    title: str = ""  # printed above
    caption: str = ""  # printed below

    @property
    def shown_columns(self) -> list[Column]:
        """The columns that people see."""
        return [column for column in self.columns if column.kind != "data"]

    def cells(self, row: Row) -> list[Text]:
        """The cells of a row that people see, with their notes."""
        shown = zip(self.columns, row, strict=True) if row else ()
        return [column.text_of(_cell(value)) for column, value in shown if column.kind != "data"]

    def to_rich(self) -> RichTable:
        """The table for a terminal, without title and caption: `console.print_table` prints all.

        No column but one of texts gets narrower than its longest line.
        """
        drawn = RichTable()
        rows = [self.cells(row) for row in self.rows]
        for place, column in enumerate(self.shown_columns):
            header = Text(f"{column.title}\n{column.unit}" if column.unit else column.title)
            cells = [header, *(row[place] for row in rows if row)]
            longest = max(line.cell_len for cell in cells for line in cell.split("\n"))
            drawn.add_column(
                header,
                justify="right" if column.kind == "figure" else "left",
                overflow="fold",
                min_width=None if column.kind == "text" else longest,
            )
        for row in rows:
            drawn.add_row(*row) if row else drawn.add_section()
        return drawn

    def to_markdown(self) -> str:
        """The table in GitHub's Markdown, its title above and its caption below."""
        headers = [inline(f"{column.title} {column.unit}") for column in self.shown_columns]
        sides = ["---:" if column.kind == "figure" else "---" for column in self.shown_columns]
        bodies = [[inline(cell.plain) for cell in self.cells(row)] for row in self.rows if row]
        lines = [f"| {' | '.join(cells)} |" for cells in (headers, sides, *bodies)]
        parts = (inline(self.title), "\n".join(lines), inline(self.caption))
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_json(self) -> list[dict[str, Any]]:
        """An object for each row, of raw values; None where there is none."""
        return [
            {
                key: None if _is_missing(value) else value
                for column, cell in zip(self.columns, row, strict=True)
                for key, value in _parts(column, _cell(cell).value)
            }
            for row in self.rows
            if row
        ]


def to_csv(tables: Sequence[Table]) -> str:
    """The raw values of all tables with a header; of several tables, with a column "table"."""
    keys = ["table"] if len(tables) > 1 else []
    keys += [key for table in tables for column in table.columns for key in column.keys]
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(keys), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        writer.writerows({"table": table.title, **row} for row in table.to_json())
    return text.getvalue()


def _cell(cell: Any) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _parts(column: Column, value: Any) -> list[tuple[str, Any]]:
    """A value under its key, or its parts under theirs."""
    whole = value if column.parts else (value,)
    return list(zip(column.keys, whole or (None,) * len(column.keys), strict=True))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
