"""`profile`: where the time of a decode step goes, per range and per kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from asv_bench.errors import Refused
from asv_bench.machine import has_cuda_gpu
from asv_bench.profile_child import Window
from asv_bench.profilers import Outcome, nsight_compute, nsight_systems, torch_trace
from asv_bench.record import Record
from asv_bench.settings import PROFILE_DIR
from asv_bench.tables import MISSING, figure, percent
from asv_bench.trace import RANGES, TraceSummary, WorkTime
from asv_bench.workloads import WORKLOADS, default_model, workload_named

SHOWN = 20


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
    steps: Annotated[int, typer.Option(min=1, help="Decode steps in the window.")] = 64,
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
    if device == "auto":
        device = "cuda" if has_cuda_gpu() else "cpu"
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
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    record = Record("profile", asdict(window))
    console = Console()
    console.print(f"profiling {steps} decode steps of {window.shape().name} with {window.model}")

    outcomes = []
    for profiler in (
        torch_trace,
        nsight_systems,
        lambda window, directory: nsight_compute(
            window, directory, nvtx_range=ncu_range, kernels=ncu_kernels
        ),
    ):
        outcomes.append(profiler(window, directory))
        _report(outcomes[-1], console)
    record.results["tools"] = [
        {
            "tool": outcome.tool,
            "files": [str(path) for path in outcome.files],
            "sentence": outcome.sentence,
            "steps": outcome.steps,
            "summary": None if outcome.summary is None else outcome.summary.to_json(),
        }
        for outcome in outcomes
    ]
    console.print(f"record: {record.write(json)}", soft_wrap=True)


def _report(outcome: Outcome, console: Console) -> None:
    if outcome.summary is not None:
        for table in summary_tables(outcome.summary, outcome.steps):
            console.print(table)
    if outcome.sentence:
        console.print(outcome.sentence, soft_wrap=True, markup=False)
    for path in outcome.files:
        console.print(f"{outcome.tool}: {path}", soft_wrap=True, markup=False)


def summary_tables(summary: TraceSummary, steps: int) -> list[Table]:
    """Tables of the ranges, and of the kernels (on a CPU: the operators), per step."""
    ranges = Table(title="Time per range", title_justify="left")
    ranges.add_column("range")
    for label in ("calls a step", "host, us a step", "device, us a step"):
        ranges.add_column(label, justify="right")
    for entry in summary.ranges:
        device = MISSING if entry.device_us is None else figure(entry.device_us / steps, 1)
        ranges.add_row(
            entry.name,
            figure(entry.calls / steps, 2),
            figure(entry.host_us / steps, 1),
            device,
        )
    if summary.kernels:
        return [ranges, _work_table("Time per kernel", "kernel", summary.kernels, steps)]
    return [ranges, _work_table("Time per operator", "operator", summary.operators, steps)]


def _work_table(title: str, kind: str, work: Sequence[WorkTime], steps: int) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(kind, overflow="ellipsis", no_wrap=True, max_width=60)
    for label in ("calls a step", "us a call", "us a step", "share"):
        table.add_column(label, justify="right")
    total = sum(entry.total_us for entry in work)
    for entry in work[:SHOWN]:
        table.add_row(
            entry.name,
            figure(entry.calls / steps, 2),
            figure(entry.total_us / entry.calls if entry.calls else None, 2),
            figure(entry.total_us / steps, 2),
            percent(entry.total_us / total if total else None),
        )
    rest = work[SHOWN:]
    if rest:
        remaining = sum(entry.total_us for entry in rest)
        table.add_row(
            f"{len(rest)} more",
            figure(sum(entry.calls for entry in rest) / steps, 2),
            MISSING,
            figure(remaining / steps, 2),
            percent(remaining / total if total else None),
        )
    return table
