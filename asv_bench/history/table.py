"""The tables that `history` prints: a row a commit, and how far it lies from the row above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure
from asv_bench.output.figure_rows import FigureRow, ShownFigure, columns_of, figure_rows
from asv_bench.output.table import Cell, Column, Table, percentage

MAIN = "scheduler"
MOST_TABLES = 4
NO_VERDICT = (
    "Medians over processes, the difference to the row above beneath. A difference is no verdict: "
    "noise alone makes some."
)


def history_tables(figures: Sequence[Figure], commits: Sequence[Commit]) -> list[Table]:
    """Tables of the figures at some commits, which are in order.

    They are of `scheduler` if it was measured, else of the first few workloads or calls, or of all
    metrics of a subject; the page has all of them.
    """
    rows_of_commit = {
        commit.hash: {
            (row.name, _title(row)): row
            for row in figure_rows([figure for figure in figures if figure.commit == commit.hash])
        }
        for commit in commits
    }
    # In the order of the newest commit's rows; what only older ones have comes after.
    keys = list(
        dict.fromkeys(key for commit in reversed(commits) for key in rows_of_commit[commit.hash])
    )
    shown = [key for key in keys if key[0] == MAIN] or keys[:MOST_TABLES]
    return [
        _table(key[1], [(commit, rows_of_commit[commit.hash].get(key)) for commit in commits])
        for key in shown
    ]


def _title(row: FigureRow) -> str:
    return row.title if row.batch is None else f"{row.title}, batch {row.batch}"


def _table(title: str, rows: Sequence[tuple[Commit, FigureRow | None]]) -> Table:
    used = columns_of(row for _, row in rows if row is not None)
    cells = []
    above: Mapping[str, ShownFigure] = {}
    for commit, row in rows:
        figures = {} if row is None else row.figures
        name = Cell(commit.hash, note=commit.subject, text=commit.short)
        cells.append((name, *(_cell(column, figures, above) for column in used), commit.subject))
        above = figures
    columns = (
        Column("commit", "commit and subject", kind="text"),
        *used,
        Column("subject", "subject", kind="data"),
    )
    return Table(columns, cells, title, NO_VERDICT)


def _cell(
    column: Column, figures: Mapping[str, ShownFigure], above: Mapping[str, ShownFigure]
) -> Cell:
    if column.key not in figures:
        return Cell(None)
    value, before = figures[column.key].value, above.get(column.key)
    note = percentage(value / before.value - 1, 1, signed=True) if before and before.value else ""
    return Cell(value, note=note)
