"""Where the commands print: one console for all, tables whose figures are never cut, and progress.

Progress is how far a command is and how long the rest takes: a line that changes, or one now and
then.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from rich.console import Console
from rich.live import Live
from rich.text import Text

from asv_bench.output.table import MISSING, Table

LEAST_WIDTH = 120
"""Columns that every table fits in; rich would guess 80 for a file and cut figures to "…"."""
INDENT, GAP = "  ", "   "
SECONDS_BETWEEN_LINES = 30.0


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


class Progress:
    """Says what is done, how much of it, and how long the rest takes.

    On a terminal that is a line, drawn anew only when something has happened: drawing while
    something is measured would be measured too. Elsewhere it is printed at the beginning, and then
    every half minute at most. `total` is None where it is not known yet.
    """

    def __init__(
        self, console: Console, what: str, total: int | None = None, unit: str = "processes"
    ) -> None:
        self._console, self._what, self._total, self._unit = console, what, total, unit
        self._done = 0
        # When the first of those that are counted was done, and how many were done then.
        self._since: tuple[float, int] | None = None
        self._preparing = ""
        self._drawn = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        self._begun = self._said_at = time.monotonic()
        if self._console.is_terminal and verbosity() is not Verbosity.QUIET:
            self._drawn.start()
        self._tell(f"{self._what}{f': {self._total} {self._unit}' if self._total else ''}")
        _shown.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _shown.remove(self)
        self._drawn.stop()

    def show(
        self, done: int | None = None, what: str | None = None, *, total: int | None = None
    ) -> None:
        """Say how many are done, what is being done and how many there will be; None: no change."""
        if done == 0:
            self._since = None
        elif done and self._since is None:
            # What comes before the first, such as compiling, says nothing of the others, and all
            # before it may be those of an earlier run.
            self._since = (time.monotonic(), done)
        self._done = self._done if done is None else done
        self._what = what or self._what
        self._total = total or self._total
        self.prepare("")

    def advance(self, what: str | None = None) -> None:
        """Say that one more is done."""
        self.show(self._done + 1, what)

    def prepare(self, what: str) -> None:
        """Say what is prepared; "": that is over."""
        self._preparing = what
        self._tell()

    def _left(self) -> str:
        """How long the rest takes, in words; empty if that is unknown."""
        since = self._since
        if not (self._total and since and self._done > since[1]):
            return ""
        each = (time.monotonic() - since[0]) / (self._done - since[1])
        return f"about {clock(each * max(0, self._total - self._done))} left"

    def _line(self) -> str:
        gone = f"{clock(time.monotonic() - self._begun)} gone"
        count = f"{self._done} of {self._total}" if self._total else str(self._done)
        counted = f"{count} {self._unit}" if self._done or self._total else ""
        parts = (counted, gone, self._left())
        return f"{self._preparing or self._what}: {', '.join(filter(None, parts))}"

    def _tell(self, line: str = "") -> None:
        """Draw the line; or print this one, or else the usual where the last was long ago."""
        if self._drawn.is_started:
            self._drawn.update(Text(self._line(), overflow="ellipsis", no_wrap=True), refresh=True)
        elif line or time.monotonic() - self._said_at >= SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            if verbosity() is not Verbosity.QUIET:
                print_sentences(self._console, [line or self._line()])


_shown: list[Progress] = []


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say, from any thread, that something is prepared meanwhile, such as "setting up 1a2b3c4d"."""
    for progress in _shown[-1:]:
        progress.prepare(what)
    try:
        yield
    finally:
        for progress in _shown[-1:]:
            progress.prepare("")


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours = f"{minutes // 60}:{minutes % 60:02d}" if minutes >= 60 else str(minutes)
    return f"{hours}:{rest:02d}"
