"""Tables that the measuring commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from asv_bench.output.console import add_figure_columns
from asv_bench.run.measure import ModeResult
from asv_bench.stats.percentiles import Summary
from asv_bench.workloads.run_sample import RunSample

MISSING = "-"

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


def figure(value: float | None, digits: int) -> str:
    """A figure with its digits, or a dash where there is none."""
    return MISSING if value is None or value != value else f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage, or a dash where there is none."""
    return MISSING if fraction is None else f"{100 * fraction:.1f} %"


def mode_table(title: str, result: ModeResult, columns: Sequence[str]) -> Table:
    """Figures of one mode; `columns` are names of `Summary` fields, such as "p50".

    Of whole runs only median and mean are shown: a handful of runs has no 99th percentile.
    """
    table = Table(title=f"{title}, {result.mode}", title_justify="left")
    table.add_column("figure")
    add_figure_columns(table, *columns)
    summaries: dict[str, Summary] = {**result.over_runs(), **result.over_requests()}
    for figures, known in ((RUN_FIGURES, ("p50", "mean")), (REQUEST_FIGURES, columns)):
        for name, label, digits in figures:
            cells = (
                figure(getattr(summaries[name], column), digits) if column in known else ""
                for column in columns
            )
            table.add_row(label, *cells)
    if result.delivery_gap_ms is not None:
        table.add_row(
            "gap between deliveries, ms",
            *(figure(getattr(result.delivery_gap_ms, column), 3) for column in columns),
        )
    table.add_section()
    table.add_row("step, ms (total time / tokens each)", figure(result.step_ms, 3))
    if result.floor_ms is not None:
        table.add_row("floor of a step, ms", figure(result.floor_ms, 3))
        table.add_row("fraction of floor", percent(result.fraction_of_floor))
    return table


def run_line(number: int, sample: RunSample) -> str:
    """One measured run in a line."""
    latencies = sample.latencies_ms()
    return (
        f"run {number} {sample.mode}: {sample.generated_tokens} tokens in {sample.wall_s:.3f} s, "
        f"decode {sample.decode_s:.3f} s ({sample.decode_tokens_per_s:,.1f} tokens/s), "
        f"TTFT p50 {figure(latencies['ttft_ms'].p50, 2)} ms, "
        f"TPOT p50 {figure(latencies['tpot_ms'].p50, 3)} ms, "
        f"ITL p99 {figure(latencies['itl_ms'].p99, 3)} ms"
    )


def headline_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of `headline.json` as a table."""
    table = Table(title=title, title_justify="left")
    table.add_column("workload", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    add_figure_columns(
        table,
        *("batch", "step\nms", "tokens/s", "TTFT\nms", "TPOT\nms", "ITL p99\nms", "floor\nms"),
        "of floor",
    )
    for row in rows:
        table.add_row(
            str(row["workload"]),
            str(row["engine"]),
            str(row["batch"]),
            figure(row["step_ms"], 3),
            figure(row["tokens_per_s"], 0),
            figure(row["ttft_ms"], 2),
            figure(row["tpot_ms"], 3),
            figure(row["itl_p99_ms"], 3),
            figure(row["floor_ms"], 3),
            percent(row["fraction_of_floor"]),
        )
    return table


def markdown(table: Table) -> str:
    """A table as Markdown, with its title above and its caption below."""
    headers = [str(column.header).replace("\n", " ") for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    lines = ["| " + " | ".join(cells) + " |" for cells in (headers, rules, *rows)]
    parts = [str(part) for part in (table.title,) if part] + ["\n".join(lines)]
    parts += [str(part) for part in (table.caption,) if part]
    return "\n\n".join(parts) + "\n"
