"""`profile`: where the time of a decode step goes, per range and per kernel."""

from __future__ import annotations

from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import Refused
from asv_bench.explain.profile_child import Window
from asv_bench.explain.profile_tables import contradictions, window_tables
from asv_bench.explain.traced import torch_traces
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.process.environment import threads_text
from asv_bench.process.machine import chosen_device
from asv_bench.run.settings import PROFILE_DIR
from asv_bench.session.grouped import grouped
from asv_bench.session.options import Outputs
from asv_bench.workloads.named import WORKLOADS, workload_named


@grouped
def run(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "scheduler",
    model: Annotated[
        str | None,
        typer.Option("--model", "--hf-model-id", help="Model (default: the device's own)."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    decode: Annotated[str, typer.Option(help="auto, eager or graph.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps in a window.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="The workload scaled down.")] = False,
    profile_dir: Annotated[
        Path | None, typer.Option(help="Where artifacts go (default: reports/profile).")
    ] = None,
    *,
    outputs: Outputs,
) -> None:
    """Show the time per range and per kernel of a window of decode steps."""
    if util.find_spec("nvtx") is None:
        raise Refused("profile needs the package nvtx, which names the engine's ranges.")
    named = workload_named(workload)
    device = chosen_device(device)
    window = Window(
        workload=workload,
        quick=quick,
        model=model or named.default_model(device, is_quick=quick),
        device=device,
        dtype=dtype,
        decode=decode,
        steps=steps,
    )
    directory = (profile_dir or PROFILE_DIR) / window.shape().name
    files = outputs.files()
    require_writable(directory / "torch.trace.json.gz")
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    record = Record("profile", asdict(window))
    console = files.console
    threads = threads_text(record.threads)
    console.print(f"profiling {window.shape().name} with {window.model}, {threads}")
    record.look_around(console, [device])

    with Progress(console, "tracing", unit="windows"):
        windows = torch_traces(window, directory)
    files.show(*window_tables(windows))
    for traced in windows:
        record.warn(console, contradictions(traced))
        console.print(f"trace: {traced.path}")
    record.results["windows"] = [one.to_json() for one in windows]
    console.print(f"record: {record.write(files.record)}")
