"""The ladder's results as tables, from the record that a run writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from asv_bench.output.console import add_figure_columns
from asv_bench.output.table import MISSING
from asv_bench.studies.ladder.claims import FIGURES
from asv_bench.studies.ladder.rung_counters import COUNTERS

Json = Mapping[str, Any]

_COUNTER_HEADERS = {
    "python_calls": "Python\ncalls",
    "operators": "aten\noperators",
    "copies": "host-device\ncopies",
    "new_tensors": "new\ntensors",
    "launches": "Triton\nlaunches",
    "graph_replays": "graph\nreplays",
}


def rung_table(rungs: Sequence[Json], title: str) -> Table:
    """A row for each rung: its step and what the step does."""
    table = Table(
        title=title,
        title_justify="left",
        caption="Counters are exact, of one steady step of the full batch: Python calls of engine, "
        "kernels and ladder; launches of Triton kernels outside graphs.",
    )
    table.add_column("rung", no_wrap=True)
    table.add_column("from")
    add_figure_columns(table, "step\nms", "against\nthe one\nbefore", "tokens\nas the\nlowest")
    add_figure_columns(table, *(_COUNTER_HEADERS[name] for name in COUNTERS))
    before: float | None = None
    for rung in rungs:
        step = float(rung["step_ms"])
        table.add_row(
            rung["rung"],
            rung["seed"] or MISSING,
            f"{step:.3f}",
            MISSING if before is None else percent(step / before - 1),
            f"{rung['same_requests']}/{rung['requests']}",
            *(f"{rung['counters'][name]:,}" for name in COUNTERS),
        )
        before = step
    return table


def claim_table(claims: Sequence[Json], title: str) -> Table:
    """A row for each figure of each claim: reported, found, and the verdict."""
    table = Table(
        title=title,
        title_justify="left",
        caption="Changes of throughput (more is better) and of latencies (less is better), with "
        "intervals of 95 % confidence. The verdict is about decode throughput and errs in 1 % of "
        "cases without a difference; visible is the smallest gain that this run would have shown.",
    )
    table.add_column("claim", overflow="fold")
    table.add_column("rungs")
    table.add_column("workload")
    table.add_column("figure")
    add_figure_columns(table, "reported", "found", "interval", "verdict", "visible", "pairs")
    for claim in claims:
        for number, figure in enumerate(claim["figures"]):
            is_first = number == 0
            table.add_row(
                f"{claim['seed']} {claim['what']}" if is_first else "",
                _rungs(claim) if is_first else "",
                claim["workload"] if is_first else "",
                FIGURES[figure["figure"]],
                percent(figure["reported"]["change"]),
                percent(figure["change"]),
                interval(figure["interval"]),
                claim["finding"] if is_first else "",
                percent(claim["smallest_change"]) if is_first else "",
                str(claim["pairs"]) if is_first else "",
            )
    return table


def agreement(rungs: Sequence[Json]) -> str:
    """What the rungs' tokens came to, in sentences: a run in which they differ otherwise fails."""
    same = "Every rung generates the lowest one's tokens"
    parted = [rung for rung in rungs if rung["parted"]]
    if not parted:
        return f"{same}."
    said = ", ".join(f"{rung['parted']} in {rung['rung']}" for rung in parted)
    return (
        f"{same}, but for near ties of fused kernels, which exist in half precision only. Requests "
        f"of the token check that part, each at a proven near tie: {said}. A request that parted "
        "stays apart, which is why so few of the long measured ones are the same to the end."
    )


def percent(change: float | None) -> str:
    """A change as a signed percentage; more digits for small ones."""
    if change is None:
        return MISSING
    digits = 0 if abs(change) >= 0.995 else 1 if abs(change) >= 0.0995 else 2
    return f"{100 * change:+.{digits}f} %"


def interval(bounds: Sequence[float | None] | None) -> str:
    """Two changes; "open" for a side that so few pairs leave open."""
    if bounds is None:
        return MISSING
    low, high = ("open" if bound is None else percent(bound) for bound in bounds)
    return f"{low} to {high}"


def _rungs(claim: Json) -> str:
    numbers = [claim[side].partition("-")[0] for side in ("base", "head")]
    return f"{numbers[0]} → {numbers[1]}" + ("" if claim["as_claimed"] else " *")
