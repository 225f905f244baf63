"""Tables as a terminal of some width shows them."""

from __future__ import annotations

import io

from rich.console import Console

from asv_bench.output.console import print_table
from asv_bench.output.table import Table


def printed(table: Table, width: int = 80) -> str:
    """The text of a table on a terminal of so many columns."""
    file = io.StringIO()
    print_table(Console(width=width, file=file), table)
    return file.getvalue()
