"""Where a command's tables go: the terminal, and files for other programs."""

from __future__ import annotations

from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.output.console import make_console, print_table
from asv_bench.output.destinations import STANDARD_OUTPUT, write_text
from asv_bench.output.record import require_places
from asv_bench.output.table import Table, to_csv


class TableFiles:
    """The files that --json, --markdown and --csv name, each tried before anything is measured.

    "-" is standard output. Where a file goes there, everything else goes to standard error.
    """

    def __init__(
        self, markdown: Path | None = None, csv: Path | None = None, record: Path | None = None
    ) -> None:
        paths = (markdown, csv, record)
        if paths.count(STANDARD_OUTPUT) > 1:
            raise Refused("two files cannot both go to standard output: give one a name.")
        require_places(record, markdown, csv)
        self.markdown = markdown  # gets the tables
        self.csv = csv  # gets the tables' rows
        self.record = record  # where the command writes its record; not written here
        self.console = make_console(stderr=STANDARD_OUTPUT in paths)  # where the command prints

    def show(self, *tables: Table, page: str | None = None) -> None:
        """Print tables and write them to the files; `page` is the Markdown if it is more than they.

        Raises MeasurementFailed if a file could not be written.
        """
        for table in tables:
            print_table(self.console, table)
        self.write(*tables, page=page)

    def write(self, *tables: Table, page: str | None = None) -> None:
        """The same without printing."""
        if self.markdown is not None:
            text = "\n".join(table.to_markdown() for table in tables) if page is None else page
            write_text(self.markdown, text)
        if self.csv is not None:
            write_text(self.csv, to_csv(tables))
