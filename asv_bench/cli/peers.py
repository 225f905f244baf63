"""`peers`: transformers' `generate` on the named workloads, beside which the engine is to stand."""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.cli.headline import PEER_PROCESSES, keep, workload_names
from asv_bench.cli.options import CsvPath, MarkdownPath, RecordPath
from asv_bench.errors import MeasurementFailed
from asv_bench.output.record import Record, require_places
from asv_bench.output.table_files import TableFiles
from asv_bench.peers.child import REPEATS
from asv_bench.peers.runs import PEERS
from asv_bench.process.machine import chosen_device
from asv_bench.run.jobs import measure_jobs, peer_jobs
from asv_bench.run.tables import headline_table
from asv_bench.workloads.named import HEADLINE_WORKLOADS, default_model

CAPTION = (
    "Step and tokens/s are medians of runs without a streamer; TTFT, TPOT and ITL are of a run "
    "with one."
)


def run(
    workloads: Annotated[
        str, typer.Option(help="Workloads to measure, separated by commas.")
    ] = ",".join(HEADLINE_WORKLOADS),
    processes: Annotated[
        int, typer.Option(min=1, help="Processes for each workload; one where it compiles.")
    ] = PEER_PROCESSES,
    repeats: Annotated[int, typer.Option(min=1, help="Measured runs in a process.")] = REPEATS,
    model: Annotated[
        str | None,
        typer.Option("--model", "--hf-model-id", help="Model (default: the device's own)."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="The workloads scaled down.")] = False,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Measure transformers' generate on the named workloads.

    With its dynamic cache, and with its static cache and torch.compile; a peer that fails costs its
    own rows.
    """
    names = workload_names(workloads)
    place = chosen_device(device)
    task = {
        "model": model or default_model(place),
        "device": place,
        "dtype": dtype,
        "quick": quick,
        "repeats": repeats,
    }
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    record = Record("peers", {"workloads": list(names), "processes": processes, **task})
    console = files.console
    folder = record.default_path().with_suffix("")
    require_places(json, folder / "process.json")
    record.look_around(console, [place])
    measured = measure_jobs(peer_jobs(names, processes, **task), folder, console)
    if not measured.by_row:
        raise MeasurementFailed(f"none of {', '.join(PEERS)} could be measured: see above.")
    path = keep(record, measured, console, json)
    files.show(headline_table(measured.rows(), record.title(str(task["model"])), CAPTION))
    console.print(f"record: {path}, samples in {folder}")
