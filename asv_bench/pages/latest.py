"""The newest figure of each graph, as rows of the page's table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from asv_bench.git.repository import kind_of
from asv_bench.history.asv_results import Figure
from asv_bench.output.table import percentage
from asv_bench.pages.graph import Graph, MarkedChange
from asv_bench.pages.machine_view import MachineView


@dataclass(frozen=True, slots=True)
class LatestRow:
    """The newest figure of one graph."""

    number: int  # the graph's place among those of the machine
    graph: Graph
    # Texts; `value` is "failed" where the newest figure is none, and empty where only a working
    # tree was measured.
    value: str
    spread: str
    step: str  # against the commit measured before, as a percentage; "" where there is none
    measured: str  # at which commit, and how long ago where others were measured since
    is_stale: bool  # whether others were
    # What a working tree that differs from its commit gave, and against the newest figure.
    draft: str
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
    place, figure = graph.lines[-1].latest if graph.lines else (None, None)
    value = spread = step = measured = ""
    is_stale = False
    if figure is not None and place is not None:
        value = "failed" if figure.failed else graph.text(figure.median)
        spread = _spread(figure)
        step = _step(graph, place, figure)
        measured, is_stale = _measured(place, view)
    lately = [change for change in graph.changes if view.is_news(change.place)]
    return LatestRow(
        number,
        graph,
        value,
        spread,
        step,
        measured,
        is_stale,
        _draft(graph, figure),
        lately[-1] if lately else None,
    )


def _spread(figure: Figure) -> str:
    return "" if math.isnan(figure.spread) else f"±{percentage(figure.spread, 1)}"


def _step(graph: Graph, place: int, figure: Figure) -> str:
    """Against the newest figure before it in the same environment."""
    before = [
        one
        for where, one in graph.lines[-1].figures.items()
        if where < place and not one.failed and one.median
    ]
    if not before or figure.failed:
        return ""
    return percentage(figure.median / before[-1].median - 1, 1, signed=True)


def _measured(place: int, view: MachineView) -> tuple[str, bool]:
    commit = view.commits[place]
    if place == len(view.commits) - 1:
        return commit.short, False
    ago = view.behind.get(commit.hash, len(view.commits) - 1 - place)
    return f"last measured {ago} {kind_of(commit.hash)}{'' if ago == 1 else 's'} ago", True


def _draft(graph: Graph, latest: Figure | None) -> str:
    draft = graph.draft
    if draft is None:
        return ""
    if draft.failed:
        return "failed"
    text = graph.text(draft.median)
    if latest is None or latest.failed or not latest.median:
        return text
    return f"{text} ({percentage(draft.median / latest.median - 1, 1, signed=True)})"
