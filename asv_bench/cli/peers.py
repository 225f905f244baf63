"""`peers`: transformers' `generate` on the named workloads, beside which the engine is to stand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import MeasurementFailed
from asv_bench.output.console import make_console, print_table
from asv_bench.output.record import RUNS, Record, require_places
from asv_bench.output.tables import headline_table
from asv_bench.peers.jobs import PROCESSES, REPEATS, measure_peers, merged_rows, peer_jobs
from asv_bench.peers.runs import PEERS
from asv_bench.process.machine import chosen_device
from asv_bench.process.threads import threads_text
from asv_bench.run.headline_rows import process_contradictions
from asv_bench.workloads.named import HEADLINE_WORKLOADS, default_model, workload_named


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "peers",
        help="Measure transformers' generate on the named workloads: dynamic cache, and static "
        "cache with torch.compile.",
    )(run)


def run(
    workloads: Annotated[
        str, typer.Option(help="Workloads to measure, separated by commas.")
    ] = ",".join(HEADLINE_WORKLOADS),
    processes: Annotated[
        int, typer.Option(min=1, help="Processes for each workload; one where it compiles.")
    ] = PROCESSES,
    repeats: Annotated[int, typer.Option(min=1, help="Measured runs in a process.")] = REPEATS,
    hf_model_id: Annotated[
        str | None, typer.Option(help="Model (default: the device's own).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="The workloads scaled down.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: in reports/runs).")
    ] = None,
) -> None:
    """Measure the peers; those that fail cost their own rows.

    Raises
    ------
    MeasurementFailed
        If not one could be measured.
    """
    names = tuple(name.strip() for name in workloads.split(","))
    for name in names:
        workload_named(name)
    place = chosen_device(device)
    model = hf_model_id or default_model(place.partition(":")[0])
    require_places(json, RUNS / "peer" / "process.json")
    jobs = peer_jobs(
        names, processes, model=model, device=place, quick=quick, dtype=dtype, repeats=repeats
    )
    record = Record(
        "peers",
        {"workloads": list(names), "processes": processes, "repeats": repeats, "model": model},
    )
    console = make_console()
    folder = record.default_path().with_suffix("")
    record.look_around(console, [place])
    outcome = measure_peers(jobs, folder, console)
    if not outcome.rows:
        raise MeasurementFailed(f"none of {', '.join(PEERS)} could be measured: see above.")
    record.notes += outcome.notes
    rows = merged_rows(outcome.rows)
    record.results = {"rows": rows, "processes": outcome.processes}
    machine = record.machine.gpu or record.machine.cpu
    table = headline_table(rows, f"{machine}, {threads_text(record.threads)}, {model}")
    table.caption = (
        "Step and tokens/s are medians of runs without a streamer; TTFT, TPOT and ITL are of a run "
        "with one."
    )
    table.caption_justify = "left"
    print_table(console, table)
    record.warn(console, process_contradictions(one["figures"] for one in outcome.processes))
    console.print(f"record: {record.write(json)}, samples in {folder}", soft_wrap=True)
