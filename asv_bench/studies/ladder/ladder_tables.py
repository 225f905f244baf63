"""The ladder's results as tables, from the record that a run writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.output.table import MISSING, Cell, Column, Table, digits
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
    columns = (
        Column("rung", "rung", kind="name"),
        Column("seed", "from", kind="name"),
        Column("step_ms", "step", "ms", digits(3)),
        Column("change", "against\nthe one\nbefore", show=percent),
        Column("tokens", "tokens\nas the\nlowest", show=_of, parts=("same", "requests")),
        *(Column(name, _COUNTER_HEADERS[name]) for name in COUNTERS),
    )
    rows = []
    before: float | None = None
    for rung in rungs:
        step = float(rung["step_ms"])
        rows.append(
            (
                rung["rung"],
                rung["seed"] or None,
                step,
                None if before is None else step / before - 1,
                (rung["same_requests"], rung["requests"]),
                *(rung["counters"][name] for name in COUNTERS),
            )
        )
        before = step
    caption = (
        "Counters are exact, of one steady step of the full batch: Python calls of engine, kernels "
        "and ladder; launches of Triton kernels outside graphs."
    )
    return Table(columns, rows, title, caption)


def claim_table(claims: Sequence[Json], plan: Json, title: str) -> Table:
    """A row for each figure of each claim: reported, found, and the verdict by a plan."""
    columns = (
        Column("claim", "claim", kind="text"),
        Column("rungs", "rungs", kind="name"),
        Column("workload", "workload", kind="name"),
        Column("figure", "figure", kind="name"),
        Column("reported", "reported", show=percent),
        Column("found", "found", show=percent),
        Column("interval", "interval", show=interval, parts=("low", "high")),
        Column("verdict", "verdict"),
        Column("pairs", "pairs"),
    )
    rows = [
        (
            *(Cell(value, text=text if is_first else "") for value, text in _of_claim(claim)),
            FIGURES[figure["figure"]],
            figure["reported"]["change"],
            figure["change"],
            Cell(figure["interval"], text=interval(figure["interval"])),
            *(Cell(value, text=text if is_first else "") for value, text in _verdict_of(claim)),
        )
        for claim in claims
        for figure in claim["figures"]
        for is_first in (figure is claim["figures"][0],)
    ]
    within = f"; equivalent is within {100 * plan['margin']:g} %" if plan["margin"] else ""
    caption = (
        "Changes of throughput (more is better) and of latencies (less is better), with intervals "
        f"of {100 * plan['confidence']:g} % confidence. The verdict is about decode throughput: it "
        f"is slower or faster in {100 * plan['alpha']:g} % of cases without a difference{within}."
    )
    return Table(columns, rows, title, caption)


def answer_table(answers: Sequence[tuple[str, Json, Json]]) -> Table:
    """A row for each claim: a record's name, the record, and the claim of it that was decided."""
    columns = (
        Column("claim", "claim", kind="text"),
        Column("answer", "answer", kind="name"),
        Column("found", "decode throughput", show=percent),
        Column("interval", "interval", show=interval, parts=("low", "high")),
        Column("reported", "reported", show=percent),
        Column("margin", "margin", show=percent),
        Column("pairs", "pairs"),
        Column("machine", "machine", kind="text"),
        Column("record", "record", kind="name"),
    )
    rows = []
    for name, record, claim in answers:
        figure, machine = claim["figures"][0], record["machine"]
        rows.append(
            (
                f"{claim['seed']} {claim['what']}",
                claim["finding"],
                figure["change"],
                Cell(figure["interval"], text=interval(figure["interval"])),
                figure["reported"]["change"],
                Cell(
                    record["settings"]["plan"]["margin"],
                    text=f"{100 * record['settings']['plan']['margin']:g} %",
                ),
                claim["pairs"],
                machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores",
                name,
            )
        )
    return Table(columns, rows)


def _of_claim(claim: Json) -> list[tuple[str, str]]:
    """What is told of a claim in its first row only: the values and their texts."""
    texts = (f"{claim['seed']} {claim['what']}", _rungs(claim), claim["workload"])
    return [(text, text) for text in texts]


def _verdict_of(claim: Json) -> list[tuple[Any, str]]:
    return [
        (claim["finding"], claim["finding"]),
        (claim["pairs"], str(claim["pairs"])),
    ]


def _of(numbers: tuple[int, int]) -> str:
    some, all_of_them = numbers
    return f"{some}/{all_of_them}"


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
