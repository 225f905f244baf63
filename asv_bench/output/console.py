"""Where the commands print: one console for all, and tables whose figures are never cut."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

LEAST_WIDTH = 120
"""Columns that every table fits in; rich would guess 80 for a file and cut figures to "…"."""
LEAST_NAME = 12
"""Columns that a name is broken to before the table grows beyond its console."""
UNLIMITED = 1000


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal, and wide enough for every table where there is none.

    Brackets are printed as they are: a path may have them.
    """
    console = Console(stderr=stderr, markup=False)
    if isinstance(console.file, io.TextIOWrapper):
        # Names of files and branches are any bytes, and not every terminal knows every character.
        console.file.reconfigure(errors="backslashreplace")
    if not console.is_terminal:
        console.width = max(console.width, LEAST_WIDTH)
    return console


def print_warnings(console: Console, sentences: Sequence[str]) -> None:
    """Print sentences about figures that may not mean what they say, a line each."""
    for sentence in sentences:
        console.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)


def add_figure_columns(table: Table, *labels: str) -> None:
    """Add columns of figures: aligned to the right, and names give way before they do."""
    for label in labels:
        table.add_column(label, justify="right", no_wrap=True)


def print_sentences(console: Console, sentences: Iterable[str]) -> None:
    """Print sentences as they are, each once: they may hold names of files and of commits."""
    for sentence in dict.fromkeys(sentences):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table whose first column is names; only they are broken to fit.

    A table whose other columns alone are wider than the console is left wider than it. Title and
    caption are taken out and printed around the table, in which they would be broken to its width.
    """
    options = console.options.update(width=UNLIMITED)
    names = table.columns[0]
    longest = max(
        Measurement.get(console, options, cell).maximum for cell in (names.header, *names.cells)
    )
    needed = Measurement.get(console, options, table).maximum - max(0, longest - LEAST_NAME)
    if needed > console.width:
        table.width = needed
    title, table.title = table.title, None
    caption, table.caption = table.caption, None
    console.print()
    if title:
        console.print(title, style="italic", soft_wrap=True, markup=False, highlight=False)
    console.print(table, crop=False)
    if caption:
        console.print(caption, style="dim", soft_wrap=True, markup=False, highlight=False)
