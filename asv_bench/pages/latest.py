"""The newest figure of each graph, as rows of the page's table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from asv_bench.git.repository import kind_of
from asv_bench.output.figure_rows import spread_text
from asv_bench.pages.graph import Graph, MarkedChange, change_between, is_base
from asv_bench.pages.machine_view import MachineView


@dataclass(frozen=True, slots=True)
class LatestRow:
    """The newest figure of one graph, as texts; `number` is its place among the machine's."""

    number: int
    graph: Graph
    value: str  # "failed" where it is none, empty where only a working tree was measured
    spread: str
    step: str  # against the commit measured before; "" where there is none
    measured: str  # at which commit, or how long ago where others were measured since
    is_stale: bool  # whether others were
    draft: str  # what a changed working tree gave, and against the newest figure
    change: MarkedChange | None  # the newest change, where it is news


def rows_of(view: MachineView) -> list[tuple[str, list[LatestRow]]]:
    """A row for each graph of a machine, by groups in the order of the graphs."""
    rows = [_row(number, graph, view) for number, graph in enumerate(view.graphs)]
    return [
        (name, list(of_group)) for name, of_group in groupby(rows, key=lambda row: row.graph.group)
    ]


def address(machine: str, key: str = "") -> str:
    """A graph's, or a machine's, address on the page."""
    parts = [machine, key] if key else [machine]
    return "#" + "/".join(quote(part, safe="(),'") for part in parts)


def _row(number: int, graph: Graph, view: MachineView) -> LatestRow:
    figures = graph.lines[-1].figures if graph.lines else {}
    place, figure = graph.lines[-1].latest if graph.lines else (-1, None)
    before = [one for where, one in figures.items() if where < place and is_base(one)]
    drafted = change_between(graph.draft, figure)
    lately = [change for change in graph.changes if view.is_news(change.place)]
    return LatestRow(
        number=number,
        graph=graph,
        value=graph.text_of(figure),
        spread="" if figure is None else spread_text(figure.spread),
        step=change_between(figure, before[-1] if before else None),
        measured="" if figure is None else _measured(place, view),
        is_stale=figure is not None and place < len(view.commits) - 1,
        draft=graph.text_of(graph.draft) + (f" ({drafted})" if drafted else ""),
        change=lately[-1] if lately else None,
    )


def _measured(place: int, view: MachineView) -> str:
    commit, newest = view.commits[place], len(view.commits) - 1
    if place == newest:
        return commit.short
    ago = view.behind.get(commit.hash, newest - place)
    return f"last measured {ago} {kind_of(commit.hash)}{'' if ago == 1 else 's'} ago"
