"""Where the commands print: one console for all, and tables whose figures are never cut."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from enum import IntEnum

from rich.console import Console
from rich.text import Text

from asv_bench.output.table import MISSING, Table

LEAST_WIDTH = 120
"""Columns that every table fits in; rich would guess 80 for a file and cut figures to "…"."""
INDENT, GAP = "  ", "   "


class Verbosity(IntEnum):
    """How much a command says beside its results and warnings."""

    QUIET = 0  # no progress
    NORMAL = 1
    VERBOSE = 2  # each pair, too, as it is measured


_said = Verbosity.NORMAL


def verbosity() -> Verbosity:
    """How much this process says."""
    return _said


def set_verbosity(wanted: Verbosity) -> None:
    """Say more or less from now on."""
    global _said
    _said = wanted


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal, or as COLUMNS says; in a file wide enough for tables.

    Sentences are printed as they are, in one line: they may hold paths with brackets.
    """
    console = Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)
    if isinstance(console.file, io.TextIOWrapper):
        # Names of files and branches are any bytes, and not every terminal knows every character.
        console.file.reconfigure(errors="backslashreplace")
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = max(console.width, LEAST_WIDTH)
    return console


def print_sentences(console: Console, sentences: Iterable[str], style: str = "") -> None:
    """Print sentences as they are, each once: they may hold names of files and of commits."""
    for sentence in dict.fromkeys(sentences):
        console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table, or where that does not fit its console a list: each row a paragraph.

    So neither names nor figures are broken. Title and caption stand around the table.
    """
    is_wide = console.width >= LEAST_WIDTH
    drawn = table.to_rich()
    needed = console.measure(drawn, options=console.options.update(width=sys.maxsize)).minimum
    console.print()
    if table.title:
        console.print(Text(table.title, "italic"), soft_wrap=is_wide)
    if needed <= console.width:
        console.print(drawn, crop=False, soft_wrap=False)
    else:
        _print_as_list(console, table)
    if table.caption:
        console.print(Text(table.caption, "dim"), soft_wrap=is_wide)


def _print_as_list(console: Console, table: Table) -> None:
    """A paragraph for each row: its name, and beneath it each figure behind its label."""
    labels = [" ".join(f"{one.title} {one.unit}".split()) for one in table.shown_columns[1:]]
    for name, *cells in (table.cells(row) for row in table.rows if row):
        lines = [Text()]
        for label, cell in zip(labels, cells, strict=True):
            if cell.plain in ("", MISSING):
                continue
            figure = Text.assemble((label, "dim"), " ", Text(" ").join(cell.split("\n")))
            if lines[-1] and lines[-1].cell_len + len(GAP) + figure.cell_len > console.width:
                lines.append(Text())
            lines[-1].append(GAP if lines[-1] else INDENT).append_text(figure)
        console.print(*filter(None, (name, *lines)), sep="\n", soft_wrap=True)
