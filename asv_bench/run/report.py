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
from asv_bench.run.measure import FIGURES, Measurement, ModeResult
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.workloads.run_sample import RunSample

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


def measure_and_report(settings: Settings, files: TableFiles) -> None:
    """Measure every mode of `settings`, print its tables, write its record."""
    flags, console = settings.flags, files.console
    require_writable((flags.profile_dir or PROFILE_DIR) / "trace" if flags.profile else None)
    record = Record(settings.command, settings.to_json())
    if record.tree.dirty:
        record.notes.append(
            f"The working tree is measured as it stands; it differs from {record.tree.commit} in "
            f"{len(record.tree.changed)} paths."
        )
    record.notes += [settings.note] if settings.note else []
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
                    console.print(
                        f"run {len(record.samples)} {sample.mode}: {sample.generated_tokens} "
                        f"tokens in {sample.wall_s:.3f} s, decode {sample.decode_s:.3f} s"
                    )

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
    console.print(f"record: {record.write(files.record)}")
    if flags.profile:
        for mode in settings.modes:
            console.print(f"trace: {measurement.trace(mode)}")


def mode_table(title: str, result: ModeResult, columns: Sequence[str]) -> Table:
    """Figures of one mode; `columns` are names of `Summary` fields, such as "p50"."""
    summaries = result.summaries()
    rows: list[Row] = [
        (label, *(_cell(getattr(summaries[name], column), count) for column in columns))
        for name, (label, count, _) in FIGURES.items()
        if name in summaries
    ]
    alone = {"step, ms (total time / tokens each)": _cell(result.step_ms, 3)}
    if result.floor_ms is not None and result.fraction_of_floor is not None:
        alone["floor of a step, ms"] = _cell(result.floor_ms, 3)
        alone["fraction of floor"] = Cell(
            result.fraction_of_floor, text=percent(1)(result.fraction_of_floor)
        )
    empty = [Cell(None, text="")] * (len(columns) - 1)
    rows += [(), *((label, cell, *empty) for label, cell in alone.items())]
    shown = (Column("figure", "figure", kind="text"), *(Column(name, name) for name in columns))
    return Table(shown, rows, f"{title}, {result.mode}")


def _cell(value: float | None, count: int) -> Cell:
    is_missing = value is None or value != value
    return Cell(value, text=MISSING if is_missing else f"{value:,.{count}f}")


def headline_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of `headline.json` as a table."""
    cells = [[row[column.key] for column in HEADLINE_COLUMNS] for row in rows]
    return Table(HEADLINE_COLUMNS, cells, title)
