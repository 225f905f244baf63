"""The one table of all commands: raw values once, shown for people and written for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from asv_bench.output.markdown import inline

MISSING = "-"
"""What is shown where there is no value."""
LEAST_PROSE = 24
"""Columns that names of several words are broken to before a table becomes a list."""


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


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that is shown with a style, with a note, or otherwise than its column says."""

    value: Any  # what CSV and JSON get
    style: str = ""  # of its text on a terminal, in rich's words
    # Small print below the text; the text itself stays alone in CSV and JSON.
    note: str = ""
    # What is shown; None: as the column shows its values.
    text: str | None = None


Row: TypeAlias = Sequence[Any]
"""A value or a `Cell` for each column. An empty row is a line between sections."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns."""

    columns: Sequence[Column]  # the first holds the rows' names
    rows: Sequence[Row]  # as long as `columns`, or empty: a line between sections
    title: str = ""  # printed above
    caption: str = ""  # printed below
    # Whether notes stand below their values, or beside them where the terminal is wide enough.
    notes: Literal["below", "beside"] = "below"

    def __post_init__(self) -> None:
        for row in self.rows:
            if row and len(row) != len(self.columns):
                raise ValueError(
                    f"the table {self.title!r} has {len(self.columns)} columns, and a row "
                    f"{len(row)} values: {row}"
                )

    def to_rich(self, *, notes_beside: bool = False) -> RichTable:
        """The table for a terminal, without title and caption: `console.print_table` prints all.

        No column gets narrower than its figures, or than the names and words that stay whole.
        """
        drawn = RichTable()
        rows = [self.cells(row, notes_beside=notes_beside) for row in self.rows]
        for place, column in enumerate(self.shown_columns):
            header = Text(f"{column.title}\n{column.unit}" if column.unit else column.title)
            drawn.add_column(
                header,
                justify="right" if column.kind == "figure" else "left",
                overflow="fold",
                no_wrap=place > 0 and column.kind != "text",
                min_width=_least_width(
                    [header, *(row[place] for row in rows if row)],
                    is_prose=column.kind == "text",
                    are_names=place == 0,
                ),
            )
        for row in rows:
            drawn.add_row(*row) if row else drawn.add_section()
        return drawn

    def to_markdown(self) -> str:
        """The table in GitHub's Markdown, its title above and its caption below."""
        headers = [inline(f"{column.title} {column.unit}") for column in self.shown_columns]
        sides = ["---:" if column.kind == "figure" else "---" for column in self.shown_columns]
        bodies = [[inline(" ".join(cell)) for cell in row] for row in self.to_texts()]
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

    def cells(self, row: Row, *, notes_beside: bool = False) -> list[Text]:
        """The cells of a row that people see, with their notes."""
        shown = zip(self.columns, row, strict=True) if row else ()
        gap = " " if notes_beside else "\n"
        return [_drawn(one, _cell(value), gap) for one, value in shown if one.kind != "data"]

    def to_texts(self) -> list[list[tuple[str, str]]]:
        """The texts and notes of the cells that people see, without the lines between sections."""
        rows = [zip(self.columns, map(_cell, row), strict=True) for row in self.rows if row]
        return [
            [(_text(one, cell), cell.note) for one, cell in row if one.kind != "data"]
            for row in rows
        ]

    @property
    def shown_columns(self) -> list[Column]:
        """The columns that people see."""
        return [column for column in self.columns if column.kind != "data"]


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


def _text(column: Column, cell: Cell) -> str:
    if cell.text is not None:
        return cell.text
    return MISSING if _is_missing(cell.value) else column.show(cell.value)


def _drawn(column: Column, cell: Cell, gap: str) -> Text:
    text = _text(column, cell)
    drawn = Text(text, style=cell.style or ("dim" if text == MISSING else ""))
    return Text.assemble(drawn, (f"{gap}{cell.note}", "dim")) if cell.note else drawn


def _least_width(cells: Sequence[Text], *, is_prose: bool, are_names: bool) -> int:
    """Columns that texts need: prose is broken between words, a name's notes too."""
    lines = [list(cell.split("\n")) for cell in cells]
    words = max(cell_len(word) for cell in cells for word in ["", *cell.plain.split()])
    longest = max(line.cell_len for several in lines for line in several)
    if is_prose:
        return max(words, min(LEAST_PROSE, longest))
    return max(words, *(several[0].cell_len for several in lines)) if are_names else longest


def _parts(column: Column, value: Any) -> Iterator[tuple[str, Any]]:
    """A value under its key, or its parts under theirs."""
    whole = value if column.parts else (value,)
    values = (None,) * len(column.keys) if whole is None else whole
    yield from zip(column.keys, values, strict=True)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
