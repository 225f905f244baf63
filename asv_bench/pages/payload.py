"""The figures of all graphs as the page's script reads them, packed small.

Figures are stored by column. A value is a whole number of its graph's `step`, five digits of the
largest, given as its distance from the one before; quartiles are distances from the value. Commits
stand once, in one table, and are named by their places. The JSON is deflated and written in base
64, which holds no character that a page could take for its own.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.git.repository import Commit, kind_of
from asv_bench.pages.graph import Graph, Line, quartiles
from asv_bench.pages.machine_view import MachineView

DIGITS = 5


def packed(views: Sequence[MachineView], commit_url: str) -> str:
    """The payload of a page, as `scripts/data.js` unpacks it."""
    commits = {commit.hash: commit for view in views for commit in view.stored.commits}
    places = {name: place for place, name in enumerate(commits)}
    content = {
        "commits": _commits(list(commits.values()), views),
        "url": commit_url,
        "machines": [_machine(view, places) for view in views],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _commits(commits: Sequence[Commit], views: Sequence[MachineView]) -> dict[str, list[Any]]:
    dates: dict[str, int] = {}
    behind: dict[str, int] = {}
    for view in views:
        dates |= view.stored.dates
        behind |= view.behind
    return {
        "hash": [commit.hash for commit in commits],
        "subject": [commit.subject for commit in commits],
        "author": [commit.author for commit in commits],
        # Labels have no date; what stands for theirs is their place.
        "date": [
            dates[commit.hash] if kind_of(commit.hash) == "commit" else None for commit in commits
        ],
        "behind": [behind.get(commit.hash) for commit in commits],
    }


def _machine(view: MachineView, places: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": view.stored.name,
        "commits": [places[commit.hash] for commit in view.stored.commits],
        "sessions": list(view.stored.sessions.begun_ms),
        "environments": view.environment_names,
        "graphs": [_graph(graph, view) for graph in view.graphs],
    }


def _graph(graph: Graph, view: MachineView) -> dict[str, Any]:
    step, places = _step(graph), view.places
    return {
        "key": graph.series.name,
        "group": graph.group,
        "title": graph.title,
        "unit": graph.unit,
        "better": graph.better or "lower",
        "metric": graph.pattern,
        "trend": graph.trend(view.stored.commits),
        "step": step,
        "lines": [_line(line, step, view) for line in graph.lines],
        "changes": [
            {
                "at": places[one.change.commit.hash],
                "state": "acknowledged" if one.acknowledged else one.standing.name.lower(),
                "worse": one.change.is_worse,
                "rises": one.change.effect > 0,
                "text": one.sentence,
            }
            for one in graph.changes
        ],
        "verdicts": [
            {"at": places[one.said.head], "verdict": one.said.verdict, "text": one.sentence}
            for one in graph.verdicts
        ],
    }


def _line(line: Line, step: float, view: MachineView) -> dict[str, Any]:
    """A line by column; places and values as distances from those before, failed ones as null."""
    rows: list[tuple[int | None, int, int]] = []
    before = 0
    for figure in line.figures.values():
        if figure.failed:
            rows.append((None, 0, 0))
            continue
        first, third = ((end - figure.median) / step for end in quartiles(figure))
        value = round(figure.median / step)
        rows.append((value - before, round(-first), round(third)))
        before = value
    values, lower, upper = map(list, zip(*rows, strict=True))
    at = list(line.figures)
    return {
        "environment": line.environment,
        "places": [place - earlier for earlier, place in zip([0, *at], at, strict=False)],
        "values": values,
        "lower": lower,
        "upper": upper,
        "processes": [len(figure.samples) for figure in line.figures.values()],
        "sessions": [view.stored.sessions.session_of(figure) for figure in line.figures.values()],
    }


def _step(graph: Graph) -> float:
    """The power of ten that leaves `DIGITS` digits; 1 where all figures are whole numbers."""
    samples = [
        sample
        for line in graph.lines
        for figure in line.figures.values()
        for sample in (figure.median, *quartiles(figure))
        if not figure.failed
    ]
    largest = max(samples, default=0.0)
    if largest == 0 or all(sample.is_integer() for sample in map(float, samples)):
        return 1.0
    return float(f"1e{math.floor(math.log10(largest)) + 1 - DIGITS}")
