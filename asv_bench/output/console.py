"""Where the commands print: one console for all, and tables whose figures are never cut."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from asv_bench.output.table import Table

LEAST_WIDTH = 120
"""Columns that every table fits in; rich would guess 80 for a file and cut figures to "…"."""
NARROWEST = 20
"""Columns below which COLUMNS is not believed."""
LEAST_PROSE = 24
"""Columns that names of several words are broken to before a table becomes a list."""
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
    drawn = _drawn(console, table)
    console.print()
    _print_around(console, table.title, "italic")
    if _least_width(console, drawn) > console.width:
        drawn.box = box.SIMPLE_HEAD
    if _least_width(console, drawn) <= console.width:
        names = drawn.columns[0]
        names.min_width = _least_name(console, names)
        names.no_wrap = False
        console.print(drawn, crop=False, soft_wrap=False)
    else:
        _print_as_list(console, drawn)
    _print_around(console, table.caption, "dim")


def _drawn(console: Console, table: Table) -> RichTable:
    """The table with notes beside their values if it asks for that and is narrow enough."""
    drawn = table.to_rich(notes_beside=table.notes == "beside")
    is_narrow = _least_width(console, drawn) <= console.width
    return drawn if table.notes == "below" or is_narrow else table.to_rich()


def _print_around(console: Console, text: str, style: str) -> None:
    if text:
        is_wide = console.width >= LEAST_WIDTH
        console.print(text, style=style, soft_wrap=is_wide, markup=False, highlight=False)


def _least_width(console: Console, table: RichTable) -> int:
    """Columns that a table needs where its names are as narrow as they may be."""
    names = table.columns[0]
    longest = max(_widths(names, lines=slice(None)))
    natural = Measurement.get(console, console.options.update(width=UNLIMITED), table).maximum
    return natural - longest + min(longest, _least_name(console, names))


def _least_name(console: Console, names: Column) -> int:
    """Columns that the names need: the first line of a name that stays whole, else its words."""
    options = console.options.update(width=UNLIMITED)
    cells = (names.header, *names.cells)
    words = max(Measurement.get(console, options, cell).minimum for cell in cells)
    if not names.no_wrap:
        return max(words, min(LEAST_PROSE, max(_widths(names, lines=slice(None)))))
    return max(words, *_widths(names, lines=slice(1)))


def _widths(names: Column, *, lines: slice) -> list[int]:
    cells = (names.header, *names.cells)
    return [line.cell_len for cell in cells for line in _text(cell).split("\n")[lines]]


def _print_as_list(console: Console, table: RichTable) -> None:
    """A paragraph for each row: its name, and beneath it each figure behind its label."""

    def write(text: Text, **options: Any) -> None:
        console.print(text, soft_wrap=False, crop=False, **options)

    labels = [" ".join(_text(column.header).plain.split()) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        name, *cells = map(_text, row)
        # A row without a name goes on with the one above.
        first, *others = name.split("\n") if name.plain else [Text(INDENT)]
        write(first, no_wrap=table.columns[0].no_wrap, overflow="ignore")
        for other in others:
            write(other)
        line = Text(INDENT)
        for label, cell in zip(labels[1:], cells, strict=True):
            if cell.plain.strip() in ("", "-"):
                continue
            entry = Text.assemble((f"{label} ", "dim"), Text(" ").join(cell.split("\n")))
            if line.plain != INDENT and line.cell_len + entry.cell_len > console.width:
                line.rstrip()
                write(line)
                line = Text(INDENT)
            line.append_text(entry).append(GAP)
        if line.plain != INDENT:
            line.rstrip()
            write(line)


def _text(cell: RenderableType) -> Text:
    """A cell of a table of ours: all of them are texts."""
    assert isinstance(cell, Text)
    return cell
