"""The rows of `headline.json`: their figures, and the median over processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asv_bench.output.contradictions import processes_apart
from asv_bench.output.stored_json import positive, text

MODE = "online"
ROW_FIELDS = (
    "step_ms",
    "tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "itl_p99_ms",
    "floor_ms",
    "fraction_of_floor",
)
ENGINE = "kvtrail"


def throttle_warnings(label: str, gpu_state: Mapping[str, Any]) -> list[str]:
    """A sentence if the GPU was throttled; `gpu_state` is its state before and after a process."""
    return [
        f"{label}: the GPU was throttled {moment} the runs ({', '.join(state['clock_events'])})."
        for moment, state in gpu_state.items()
        if state is not None and state["throttled"]
    ]


def process_contradictions(processes: Iterable[Mapping[str, Any]]) -> list[str]:
    """What to know where processes of one workload and engine gave steps far apart."""
    steps = (
        (f"the step of {figures['engine']} on {figures['workload']}", figures["step_ms"])
        for figures in processes
    )
    return processes_apart(steps, "ms")


def child_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """The headline figures of one process."""
    result = record["results"]["modes"][MODE]
    workload = record["settings"]["workload"]
    return {
        "workload": workload["name"],
        "engine": ENGINE,
        "batch": workload["batch_size"],
        "step_ms": result["step_ms"],
        "tokens_per_s": result["total_tokens_per_s"]["p50"],
        "ttft_ms": result["ttft_ms"]["p50"],
        "tpot_ms": result["tpot_ms"]["p50"],
        "itl_p99_ms": result["itl_ms"]["p99"],
        "floor_ms": result["floor_ms"],
        "fraction_of_floor": result["fraction_of_floor"],
    }


def check_figures(figures: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError unless a row can be made of these figures of a process."""
    text(figures["workload"])
    text(figures["engine"])
    positive(figures["batch"])
    for name in ROW_FIELDS:
        if figures[name] is not None:
            positive(figures[name])


def headline_row(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of `headline.json`: the median of each figure over the processes."""
    row: dict[str, Any] = {
        "workload": processes[0]["workload"],
        "engine": processes[0]["engine"],
        "batch": processes[0]["batch"],
    }
    for name in ROW_FIELDS:
        values = [figures[name] for figures in processes if figures[name] is not None]
        row[name] = statistics.median(values) if values else None
    return row
