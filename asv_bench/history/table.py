"""The tables that `history` prints: a row a commit, and how far it lies from the row above."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure
from asv_bench.output.figure_rows import figure_text, place_of
from asv_bench.output.table import Cell, Column, Table, percentage

MAIN = "scheduler"
MOST_TABLES = 4
NO_VERDICT = (
    "Medians over processes, the difference to the row above beneath. A difference is no verdict: "
    "noise alone makes some."
)


def history_tables(figures: Sequence[Figure], commits: Sequence[Commit]) -> list[Table]:
    """Tables of the figures at some commits, which are in order.

    They are of `scheduler` if it was measured, else of the first few benchmarks, or of all metrics
    of a subject; the page has all of them.
    """
    places = {commit.hash: place for place, commit in enumerate(commits)}
    found: dict[str, dict[str, dict[str, Figure]]] = {}
    # In the order of the newest commit's figures; what only older ones have comes after.
    for figure in sorted(figures, key=lambda figure: -places.get(figure.commit, -1)):
        of_what, name = place_of(figure)
        if figure.commit in places and not figure.failed:
            found.setdefault(of_what, {}).setdefault(name, {})[figure.commit] = figure
    shown = [title for title in found if title.partition(",")[0] == MAIN]
    return [_table(title, found[title], commits) for title in shown or [*found][:MOST_TABLES]]


def _table(title: str, figures: dict[str, dict[str, Figure]], commits: Sequence[Commit]) -> Table:
    units = {name: next(iter(of_name.values())).unit for name, of_name in figures.items()}
    columns = (
        Column("commit", "commit and subject", kind="text"),
        *(Column(one, one, show=partial(figure_text, unit=unit)) for one, unit in units.items()),
        Column("subject", "subject", kind="data"),
    )
    rows = []
    above: Commit | None = None
    for commit in commits:
        cells = [_cell(of_name, commit, above) for of_name in figures.values()]
        name = Cell(commit.hash, note=commit.subject, text=commit.short)
        rows.append((name, *cells, commit.subject))
        above = commit
    return Table(columns, rows, title, NO_VERDICT)


def _cell(figures: dict[str, Figure], commit: Commit, above: Commit | None) -> Cell:
    figure = figures.get(commit.hash)
    before = figures[above.hash].median if above is not None and above.hash in figures else 0.0
    if figure is None:
        return Cell(None)
    note = percentage(figure.median / before - 1, 1, signed=True) if before else ""
    return Cell(figure.median, note=note)
