"""Where the commands print: one console for all, and tables whose figures are never cut."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from enum import IntEnum

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from asv_bench.output.table import MISSING, Table

LEAST_WIDTH = 120
"""Columns that every table fits in; rich would guess 80 for a file and cut figures to "…"."""
NARROWEST = 20
"""Columns below which COLUMNS is not believed."""
INDENT = "  "
GAP = "   "
UNLIMITED = 1000


class Verbosity(IntEnum):
    """How much a command says beside its results and warnings."""

    QUIET = 0
    """No progress."""
    NORMAL = 1
    VERBOSE = 2
    """Each pair, too, as it is measured."""


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
    said = os.environ.get("COLUMNS", "")
    is_said = said.isdecimal() and int(said) >= NARROWEST
    if not console.is_terminal and not is_said:
        console.width = max(console.width, LEAST_WIDTH)
    return console


def print_sentences(console: Console, sentences: Iterable[str], style: str = "") -> None:
    """Print sentences as they are, each once: they may hold names of files and of commits."""
    for sentence in dict.fromkeys(sentences):
        console.print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def print_remarks(console: Console, remarks: Iterable[str]) -> None:
    """Print what is to say of commits ("commit 1a2b3c4d: ..."), the same of several once."""
    commits: dict[str, list[str]] = {}
    for remark in remarks:
        commit, _, what = remark.partition(": ")
        commits.setdefault(what, []).append(commit)
    for what, found in commits.items():
        more = f" and {len(found) - 1} more" if found[1:] else ""
        print_sentences(console, [f"{found[0]}{more}: {what}"], "yellow")


def print_table(console: Console, table: Table) -> None:
    """Print a table that fits its console, without breaking a name or a figure.

    Names in the first column stay whole, and texts there may be broken between words. A table that
    does not fit so is printed as a list, a row a paragraph. Title and caption are printed around
    the table, in which they would be broken to its width.
    """
    console.print()
    _print_around(console, table.title, "italic")
    beside = [table.to_rich(notes_beside=True)] if table.notes == "beside" else []
    tight = table.to_rich()
    tight.box = box.SIMPLE_HEAD
    for drawn in (*beside, table.to_rich(), tight):
        options = console.options.update(width=UNLIMITED)
        if Measurement.get(console, options, drawn).minimum <= console.width:
            console.print(drawn, crop=False, soft_wrap=False)
            break
    else:
        _print_as_list(console, table)
    _print_around(console, table.caption, "dim")


def _print_around(console: Console, text: str, style: str) -> None:
    if text:
        is_wide = console.width >= LEAST_WIDTH
        console.print(text, style=style, soft_wrap=is_wide, markup=False, highlight=False)


def _print_as_list(console: Console, table: Table) -> None:
    """A paragraph for each row: its name, and beneath it each figure behind its label."""
    first, *others = table.shown_columns
    labels = [f"{' '.join(f'{one.title} {one.unit}'.split())} " for one in others]
    for name, *cells in (table.cells(row) for row in table.rows if row):
        lines = list(name.split("\n")) if name.plain else []
        figures = [
            Text.assemble((label, "dim"), Text(" ").join(cell.split("\n")))
            for label, cell in zip(labels, cells, strict=True)
            if cell.plain.strip() not in ("", MISSING)
        ]
        line = Text(INDENT)
        for figure in figures:
            if line.plain != INDENT and line.cell_len + len(GAP) + figure.cell_len > console.width:
                lines.append(line)
                line = Text(INDENT)
            line.append(GAP if line.plain != INDENT else "").append_text(figure)
        for place, text in enumerate([*lines, line] if figures else lines):
            is_whole = place == 0 and first.kind != "text"
            console.print(text, no_wrap=is_whole, overflow="ignore", soft_wrap=False, crop=False)
