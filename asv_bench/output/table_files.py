"""Where a command's tables go: the terminal, and files for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.output.console import make_console, print_table
from asv_bench.output.destinations import STANDARD_OUTPUT, write_text
from asv_bench.output.record import require_places
from asv_bench.output.table import Table, to_csv


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files that --json, --markdown and --csv name, each tried before anything is measured.

    "-" is standard output. Where a file goes there, everything else goes to standard error.
    """

    markdown: Path | None = None  # gets the tables
    csv: Path | None = None  # gets the tables' rows
    # Where the command writes its record; not written here.
    record: Path | None = None
    console: Console = field(init=False)  # where the command prints

    def __post_init__(self) -> None:
        paths = list(self)
        if paths.count(STANDARD_OUTPUT) > 1:
            raise Refused("two files cannot both go to standard output: give one a name.")
        require_places(self.record, self.markdown, self.csv)
        console = make_console(stderr=STANDARD_OUTPUT in paths)
        object.__setattr__(self, "console", console)

    def __iter__(self) -> Iterator[Path]:
        """The files that were named."""
        named = (self.markdown, self.csv, self.record)
        return (path for path in named if path is not None)

    def show(self, *tables: Table, page: str | None = None) -> None:
        """Print tables and write them to the files, as `write` does."""
        for table in tables:
            print_table(self.console, table)
        self.write(*tables, page=page)

    def write(self, *tables: Table, page: str | None = None) -> None:
        """Write tables to the files; `page` is the Markdown if it is more than they.

        Raises WrittenElsewhere if a file could not be written.
        """
        if self.markdown is not None:
            text = "\n".join(table.to_markdown() for table in tables) if page is None else page
            write_text(self.markdown, text, suffix=".md")
        if self.csv is not None:
            write_text(self.csv, to_csv(tables), suffix=".csv")
