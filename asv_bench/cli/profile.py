"""`profile`: where the time of a decode step goes, per range and per kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.explain.profile_child import Window
from asv_bench.explain.profile_tables import contradictions, window_tables
from asv_bench.explain.profilers import Outcome, nsight_compute, nsight_systems, torch_traces
from asv_bench.explain.trace import RANGES
from asv_bench.output.console import make_console, print_table
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record, require_places
from asv_bench.process.machine import chosen_device
from asv_bench.process.threads import threads_text
from asv_bench.run.settings import PROFILE_DIR
from asv_bench.workloads.named import WORKLOADS, default_model, workload_named


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("profile", help="Time per range and per kernel of a window of decode steps.")(run)


def run(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "scheduler",
    hf_model_id: Annotated[
        str | None, typer.Option(help="Model (default: random:gpt2, on a CPU random:gpt2-tiny).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    decode: Annotated[str, typer.Option(help="auto, eager or graph.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps in a window.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="The workload scaled down.")] = False,
    ncu_range: Annotated[
        str, typer.Option(help="Range whose kernels Nsight Compute looks at.")
    ] = "attention",
    ncu_kernels: Annotated[
        int, typer.Option(min=1, help="Kernels that Nsight Compute looks at.")
    ] = 12,
    profile_dir: Annotated[
        Path | None, typer.Option(help="Where artifacts go (default: reports/profile).")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the record goes (default: in reports/runs).")
    ] = None,
) -> None:
    """Profile a window of decode steps with every profiler that works here."""
    if ncu_range not in RANGES:
        raise Refused(f"--ncu-range is {ncu_range!r}; it must be one of {', '.join(RANGES)}.")
    if util.find_spec("nvtx") is None:
        raise Refused("profile needs the package nvtx, which names the engine's ranges.")
    workload_named(workload)
    device = chosen_device(device)
    window = Window(
        workload=workload,
        quick=quick,
        model=hf_model_id or default_model("cuda" if device.startswith("cuda") else "cpu"),
        device=device,
        dtype=dtype,
        decode=decode,
        steps=steps,
        trace=None,
    )
    directory = (profile_dir or PROFILE_DIR) / window.shape().name
    require_places(json, directory / "torch.trace.json.gz")
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    record = Record("profile", asdict(window))
    console = make_console()
    threads = threads_text(record.threads)
    console.print(
        f"profiling {window.shape().name} with {window.model}, {threads}", highlight=False
    )
    record.look_around(console, [device])

    with Progress(console, "tracing", unit="windows"):
        traces = torch_traces(window, directory)
    _report(traces, console)
    for outcome in traces:
        if outcome.traced is not None:
            record.warn(console, contradictions(outcome.traced))
    with Progress(console, "Nsight Systems", unit="windows"):
        systems = nsight_systems(window, directory)
    _report([systems], console)
    with Progress(console, "Nsight Compute", unit="windows"):
        compute = nsight_compute(window, directory, nvtx_range=ncu_range, kernels=ncu_kernels)
    _report([compute], console)
    record.results["tools"] = [outcome.to_json() for outcome in (*traces, systems, compute)]
    console.print(f"record: {record.write(json)}", soft_wrap=True)


def _report(outcomes: Sequence[Outcome], console: Console) -> None:
    windows = [outcome.traced for outcome in outcomes if outcome.traced is not None]
    for table in window_tables(windows) if windows else ():
        print_table(console, table)
    for outcome in outcomes:
        if outcome.sentence:
            console.print(outcome.sentence, soft_wrap=True, markup=False)
        for path in outcome.files:
            console.print(f"{outcome.tool}: {path}", soft_wrap=True, markup=False)
