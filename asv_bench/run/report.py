"""Measure settings, print tables, write the record; and the table of headline figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record, TableFiles
from asv_bench.output.table import MISSING, Cell, Column, Row, Table, digits, percent
from asv_bench.process.environment import threads_text
from asv_bench.run.measure import OF_RUNS, Measurement, ModeResult
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.words import processes_apart
from asv_bench.workloads.run_sample import RunSample, latencies_ms

# The label of each figure and its digits after the point, in the order they are printed.
FIGURES = {
    "decode_s": ("decode time, s", 3),
    "total_s": ("total time, s", 3),
    "decode_step_ms": ("decode step, ms", 3),
    "decode_tokens_per_s": ("throughput, tokens/s of decode time", 1),
    "total_tokens_per_s": ("throughput, tokens/s of total time", 1),
    "ttft_ms": ("TTFT, ms", 2),
    "tpot_ms": ("TPOT, ms", 3),
    "itl_ms": ("ITL, ms", 3),
    "latency_ms": ("latency, ms", 1),
    "delivery_gap_ms": ("gap between deliveries, ms", 3),
}
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


def measure_and_report(settings: Settings) -> None:
    """Measure every mode of `settings`, print its tables, write its record."""
    flags = settings.flags
    files = TableFiles(flags.markdown, flags.csv, flags.json)
    require_writable((flags.profile_dir or PROFILE_DIR) / "trace" if flags.profile else None)
    console = files.console
    record = Record(settings.command, settings.to_json())
    if record.tree.dirty:
        record.notes.append(
            f"The working tree is measured as it stands; it differs from {record.tree.commit} in "
            f"{len(record.tree.changed)} paths."
        )
    if settings.plan.note:
        record.notes.append(settings.plan.note)
    for note in record.notes:
        console.print(note)
    record.look_around(console, [settings.device])

    results: list[ModeResult] = []
    name = settings.workload.name
    total = len(settings.modes) * (flags.warmup_runs + flags.repeat_runs)
    what = f"{name}, {threads_text(record.threads)}: building the engine"
    with Progress(console, what, total, "runs") as progress:
        measurement = Measurement(settings)
        record.results["engine"] = measurement.engine_facts()
        record.threads = measurement.engine_threads

        def on_run(sample: RunSample | None) -> None:
            progress.advance()
            if sample is not None:
                record.samples.append(sample.to_json())
                if flags.print_per_run:
                    console.print(run_line(len(record.samples), sample))

        for mode in settings.modes:
            progress.name(f"{name}: {mode}")
            results.append(measurement.run_mode(mode, on_run))
    bandwidth = measurement.bandwidth
    record.results["read_bandwidth"] = bandwidth and asdict(bandwidth)
    record.results["modes"] = {result.mode: result.to_json() for result in results}
    record.results["runs"] = results[0].each_run()

    # Who reads a stream sees its slow tokens, so percentiles count.
    columns = ("p50", "mean") if settings.delivery is None else ("p50", "p95", "p99", "mean")
    machine = record.machine.gpu or record.machine.cpu
    title = f"{name} on {machine}, {threads_text(record.threads)}"
    files.show(*(mode_table(title, result, columns) for result in results))
    for result in results:
        record.warn(console, contradictions(result))
    console.print(f"record: {record.write(flags.json)}")
    if flags.profile:
        for mode in settings.modes:
            console.print(f"trace: {measurement.trace(mode)}")


def contradictions(result: ModeResult) -> list[str]:
    """What to know where runs of one mode gave steps far apart."""
    name = f"{result.mode} decode step"
    steps = ((name, sample.decode_step_ms) for sample in result.samples)
    return processes_apart(steps, "ms", of_what="runs")


def mode_table(title: str, result: ModeResult, columns: Sequence[str]) -> Table:
    """Figures of one mode; `columns` are names of `Summary` fields, such as "p50".

    Of whole runs only median and mean are shown: a handful of runs has no 99th percentile.
    """
    empty = Cell(None, text="")
    rows: list[Row] = []
    for name, summary in result.summaries().items():
        label, count = FIGURES[name]
        known = ("p50", "mean") if name in OF_RUNS else columns
        cells = (_cell(getattr(summary, one), count) if one in known else empty for one in columns)
        rows.append((label, *cells))
    alone = {"step, ms (total time / tokens each)": _cell(result.step_ms, 3)}
    if result.floor_ms is not None:
        fraction = result.floor_ms / result.step_ms
        alone["floor of a step, ms"] = _cell(result.floor_ms, 3)
        alone["fraction of floor"] = Cell(fraction, text=percent(1)(fraction))
    rows += [(), *((label, cell, *[empty] * len(columns[1:])) for label, cell in alone.items())]
    shown = (Column("figure", "figure", kind="text"), *(Column(name, name) for name in columns))
    return Table(shown, rows, f"{title}, {result.mode}")


def run_line(number: int, sample: RunSample) -> str:
    """One measured run in a line."""
    latencies = latencies_ms([sample])
    return (
        f"run {number} {sample.mode}: {sample.generated_tokens} tokens in {sample.wall_s:.3f} s, "
        f"decode {sample.decode_s:.3f} s ({sample.decode_tokens_per_s:,.1f} tokens/s), "
        f"TTFT p50 {_figure(latencies['ttft_ms'].p50, 2)} ms, "
        f"TPOT p50 {_figure(latencies['tpot_ms'].p50, 3)} ms, "
        f"ITL p99 {_figure(latencies['itl_ms'].p99, 3)} ms"
    )


def headline_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of `headline.json` as a table."""
    cells = [[row[column.key] for column in HEADLINE_COLUMNS] for row in rows]
    return Table(HEADLINE_COLUMNS, cells, title)


def _cell(value: float | None, count: int) -> Cell:
    return Cell(value, text=_figure(value, count))


def _figure(value: float | None, count: int) -> str:
    return MISSING if value is None or value != value else f"{value:,.{count}f}"
