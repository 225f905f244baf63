"""Figures as text, and tables of rich as Markdown."""

from __future__ import annotations

from rich.table import Table as RichTable

from asv_bench.output.table import MISSING, Table
from asv_bench.output.table import percent as in_percent


def figure(value: float | None, digits: int) -> str:
    """A figure with its digits, or a dash where there is none."""
    return MISSING if value is None or value != value else f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage, or a dash where there is none."""
    return MISSING if fraction is None else in_percent(1)(fraction)


def markdown(table: Table | RichTable) -> str:
    """A table as Markdown, with its title above and its caption below."""
    if isinstance(table, Table):
        return table.to_markdown()
    headers = [str(column.header).replace("\n", " ") for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    lines = ["| " + " | ".join(cells) + " |" for cells in (headers, rules, *rows)]
    parts = [str(part) for part in (table.title,) if part] + ["\n".join(lines)]
    parts += [str(part) for part in (table.caption,) if part]
    return "\n\n".join(parts) + "\n"
