"""`roofline`: set every kernel of a decode step against the bandwidth of memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from asv_bench.errors import Refused
from asv_bench.explain.window import Window
from asv_bench.lab.roofline import roofline_table, trace_roofline
from asv_bench.memory.bandwidth import require_bandwidth
from asv_bench.output.record import REPOSITORY, Record, TableFiles
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.session.options import place_of_figures
from asv_bench.workloads.named import HEADLINE_WORKLOADS, Workload, workloads_named

RECORD = REPOSITORY / "reports" / "roofline.json"


def run(
    workloads: Annotated[
        str, typer.Option(help="Workloads to look at, separated by commas.")
    ] = ",".join(HEADLINE_WORKLOADS),
    steps: Annotated[int, typer.Option(min=3, help="Decode steps to trace.")] = 48,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Folder of roofline.json and .md (default: reports).")
    ] = None,
) -> None:
    """Show bytes, time and share of the bandwidth of every kernel of a decode step."""
    named = workloads_named(workloads)
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused(
            "roofline needs a GPU: it times the fused kernels, which nothing else runs; `profile` "
            "shows where a CPU's time goes."
        )
    from engine.models.registry import RANDOM_CONFIGS, RANDOM_PREFIX

    facts = machine_facts()
    path = place_of_figures(RECORD, output and output / RECORD.name, facts)
    page = path.with_suffix(".md")
    files = TableFiles(page, record=path)
    console = files.console
    windows = [window_of(workload, steps, place) for workload in named]
    models = ", ".join(dict.fromkeys(f"{one.model} {one.dtype}" for one in windows))
    settings = {"workloads": [one.name for one in named], "steps": steps, "models": models}
    record = Record("roofline", settings, machine=facts)
    record.look_around(console, [place])
    bandwidth = require_bandwidth(place)
    results = []
    for window in windows:
        console.print(f"tracing {window.workload}")
        config = RANDOM_CONFIGS[window.model.removeprefix(RANDOM_PREFIX)]
        result = trace_roofline(window, config, bandwidth.bytes_per_second)
        results.append(result)
        known = {"window": asdict(window), "result": msgspec.to_builtins(result)}
        record.samples.append(known)
    tables = [roofline_table(result) for result in results]
    record.results = {
        "read_bandwidth": asdict(bandwidth),
        "rooflines": msgspec.to_builtins(results),
    }
    record.write(path)
    text = "\n".join(table.to_markdown() for table in tables)
    files.show(*tables, page=f"# Roofline: {record.title(models)}\n\n{text}")
    console.print(f"record: {path}, beside it {page.name}")


def window_of(workload: Workload, steps: int, device: str) -> Window:
    """A window in the middle of which the batch attends to the workload's mean context."""
    # About two steps have been launched when the window may begin.
    skip = round(workload.mean_context - workload.mean_prompt - steps / 2) - 2
    return Window(
        workload=workload.name,
        quick=False,
        model=workload.default_model(device),
        device=device,
        dtype="bfloat16" if workload.model else "float16",
        steps=steps,
        skip=max(0, skip),
    )
