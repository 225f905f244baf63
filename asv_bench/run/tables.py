"""Tables of `run` and `headline`, and the line of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asv_bench.output.table import MISSING, Cell, Column, Row, Table, digits, percent
from asv_bench.run.measure import ModeResult
from asv_bench.stats.percentiles import Summary
from asv_bench.workloads.run_sample import RunSample, latencies_ms

# (result name, label, digits after the point), in the order they are printed.
RUN_FIGURES = (
    ("decode_s", "decode time, s", 3),
    ("total_s", "total time, s", 3),
    ("decode_step_ms", "decode step, ms", 3),
    ("decode_tokens_per_s", "throughput, tokens/s of decode time", 1),
    ("total_tokens_per_s", "throughput, tokens/s of total time", 1),
)
REQUEST_FIGURES = (
    ("ttft_ms", "TTFT, ms", 2),
    ("tpot_ms", "TPOT, ms", 3),
    ("itl_ms", "ITL, ms", 3),
    ("latency_ms", "latency, ms", 1),
)
HEADLINE_COLUMNS = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("batch", "batch", show=str),
    Column("step_ms", "step", "ms", digits(3)),
    Column("tokens_per_s", "tokens/s", show=digits(0)),
    Column("ttft_ms", "TTFT", "ms", digits(2)),
    Column("tpot_ms", "TPOT", "ms", digits(3)),
    Column("itl_p99_ms", "ITL p99", "ms", digits(3)),
    Column("floor_ms", "floor", "ms", digits(3)),
    Column("fraction_of_floor", "of floor", show=percent(1)),
)


def mode_table(title: str, result: ModeResult, columns: Sequence[str]) -> Table:
    """Figures of one mode; `columns` are names of `Summary` fields, such as "p50".

    Of whole runs only median and mean are shown: a handful of runs has no 99th percentile.
    """
    summaries: dict[str, Summary] = {**result.over_runs(), **result.over_requests()}

    def row(label: str, summary: Summary, count: int, known: Sequence[str] = columns) -> Row:
        return label, *(
            _cell(getattr(summary, name), count) if name in known else Cell(None, text="")
            for name in columns
        )

    def alone(label: str, cell: Cell) -> Row:
        return label, cell, *(Cell(None, text="") for _ in columns[1:])

    rows = [
        row(label, summaries[name], count, known)
        for figures, known in ((RUN_FIGURES, ("p50", "mean")), (REQUEST_FIGURES, columns))
        for name, label, count in figures
    ]
    if result.delivery_gap_ms is not None:
        rows.append(row("gap between deliveries, ms", result.delivery_gap_ms, 3))
    rows += [(), alone("step, ms (total time / tokens each)", _cell(result.step_ms, 3))]
    if result.floor_ms is not None:
        fraction = Cell(result.fraction_of_floor, text=percent(1)(result.floor_ms / result.step_ms))
        rows.append(alone("floor of a step, ms", _cell(result.floor_ms, 3)))
        rows.append(alone("fraction of floor", fraction))
    shown = (Column("figure", "figure", kind="text"), *(Column(name, name) for name in columns))
    return Table(shown, rows, f"{title}, {result.mode}")


def run_line(number: int, sample: RunSample) -> str:
    """One measured run in a line."""
    latencies = latencies_ms([sample])
    return (
        f"run {number} {sample.mode}: {sample.generated_tokens} tokens in {sample.wall_s:.3f} s, "
        f"decode {sample.decode_s:.3f} s ({sample.decode_tokens_per_s:,.1f} tokens/s), "
        f"TTFT p50 {figure(latencies['ttft_ms'].p50, 2)} ms, "
        f"TPOT p50 {figure(latencies['tpot_ms'].p50, 3)} ms, "
        f"ITL p99 {figure(latencies['itl_ms'].p99, 3)} ms"
    )


def headline_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of `headline.json` as a table."""
    cells = [[row[column.key] for column in HEADLINE_COLUMNS] for row in rows]
    return Table(HEADLINE_COLUMNS, cells, title)


def _cell(value: float | None, count: int) -> Cell:
    return Cell(value, text=figure(value, count))


def figure(value: float | None, digits: int) -> str:
    """A figure with its digits, or a dash where there is none."""
    return MISSING if value is None or value != value else f"{value:,.{digits}f}"
