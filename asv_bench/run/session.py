"""Measure settings, print tables, write the record."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from asv_bench.output.contradictions import ratio_sentence, skew_sentences, spread_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table_files import TableFiles
from asv_bench.process.threads import threads_text
from asv_bench.run.measure import Measurement, ModeResult
from asv_bench.run.settings import PROFILE_DIR, Settings
from asv_bench.run.tables import mode_table, run_line
from asv_bench.workloads.run_sample import RunSample


def measure_and_report(settings: Settings) -> Path:
    """Measure every mode of `settings`, print its tables, write its record; returns its path."""
    flags = settings.flags
    files = TableFiles.beside_record(flags.json, markdown=flags.markdown, csv=flags.csv)
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
    with Progress(console, what, total, "runs", is_apart=False) as progress:
        measurement = Measurement(settings)
        record.results["engine"] = measurement.engine_facts()
        record.threads = measurement.engine_threads
        for mode in settings.modes:

            def on_run(sample: RunSample | None) -> None:
                progress.advance()
                if sample is None:
                    return
                record.samples.append(sample.to_json())
                if flags.print_per_run:
                    console.print(run_line(len(record.samples), sample))

            progress.name(f"{name}: {mode}")
            results.append(measurement.run_mode(mode, on_run))
    bandwidth = measurement.bandwidth
    record.results["read_bandwidth"] = None if bandwidth is None else asdict(bandwidth)
    record.results["modes"] = {result.mode: result.to_json() for result in results}
    record.results["runs"] = results[0].each_run()

    # Who reads a stream sees its slow tokens, so percentiles count.
    columns = ("p50", "mean") if settings.delivery is None else ("p50", "p95", "p99", "mean")
    machine = record.machine.gpu or record.machine.cpu
    title = f"{settings.workload.name} on {machine}, {threads_text(record.threads)}"
    files.show(*(mode_table(title, result, columns) for result in results))
    for result in results:
        record.warn(console, contradictions(result))
    path = record.write(flags.json)
    console.print(f"record: {path}")
    if flags.profile:
        for mode in settings.modes:
            console.print(f"trace: {measurement.trace(mode)}")
    return path


def contradictions(result: ModeResult) -> list[str]:
    """A sentence for each way in which the figures of one mode contradict each other."""
    runs, requests = result.over_runs(), result.over_requests()
    step, tpot = runs["decode_step_ms"].p50, requests["tpot_ms"].p50
    mode = result.mode
    said = spread_sentences(
        {f"{mode} decode step": [sample.decode_step_ms for sample in result.samples]}, unit="ms"
    )
    said += skew_sentences(
        {
            f"{mode} {label}": (summary.p50, summary.mean)
            for label, summary in (
                ("TPOT, ms,", requests["tpot_ms"]),
                ("ITL, ms,", requests["itl_ms"]),
            )
            if summary.p50 is not None and summary.mean is not None
        }
    )
    if step is not None and tpot is not None:
        said += ratio_sentence((f"{mode} decode step", step), (f"{mode} TPOT", tpot), "ms")
    return said
