"""`profile`: where the time of a decode step goes, per range and per kernel."""

from __future__ import annotations

from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import Refused
from asv_bench.explain.trace import short_kernel_name
from asv_bench.explain.window import Traced, Window, torch_traces
from asv_bench.output.destinations import require_writable
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Cell, Column, Row, Table, digits, percent
from asv_bench.process.environment import threads_text
from asv_bench.process.machine import chosen_device
from asv_bench.run.settings import PROFILE_DIR
from asv_bench.session.grouped import grouped
from asv_bench.session.options import Outputs
from asv_bench.workloads.named import WORKLOADS, workload_named

_SHOWN = 20
_NAME_WIDTH = 56


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
    record = Record("profile", asdict(window))
    console = files.console
    threads = threads_text(record.threads)
    console.print(f"profiling {window.shape().name} with {window.model}, {threads}")
    record.look_around(console, [device])

    with Progress(console, "tracing", unit="windows"):
        windows = torch_traces(window, directory.resolve())
    # The last window is decoded as the engine really runs.
    files.show(_range_table(windows[0]), _work_table(windows[-1]))
    for traced in windows:
        console.print(f"trace: {traced.path}")
    record.results["windows"] = [
        {
            "file": one.path.name,
            "window": asdict(one.decoded),
            "summary": asdict(one.summary),
        }
        for one in windows
    ]
    console.print(f"record: {record.write(files.record)}")


def _range_table(window: Traced) -> Table:
    """Host and device time of each range, with the ranges within it."""
    steps = window.decoded.steps
    columns = [
        Column("range", "range", kind="name"),
        Column("calls", "calls", "a step", digits(2)),
        Column("host_us", "host", "µs a step", digits(1)),
        Column("device_us", "device", "µs a step", digits(1)),
    ]
    rows: list[Row] = [
        (one.name, one.calls / steps, one.host_us / steps, one.device_us / steps)
        for one in window.summary.ranges
    ]
    return Table(columns, rows, _title("range", window), "A range holds those within it.")


def _work_table(window: Traced) -> Table:
    """Kernels by their time; operators where no device worked."""
    summary, steps = window.summary, window.decoded.steps
    kind = "kernel" if summary.is_device else "operator"
    columns = [
        Column(kind, kind, kind="name"),
        Column("calls", "calls", "a step", digits(2)),
        Column("us_a_call", "µs", "a call", digits(2)),
        Column("us_a_step", "µs", "a step", digits(2)),
        Column("share", "share", "", percent(1)),
    ]
    figures = [(one.name, one.calls, one.total_us) for one in summary.work]
    total, rest = sum(us for _, _, us in figures), figures[_SHOWN:]
    if rest:
        more = sum(calls for _, calls, _ in rest), sum(us for _, _, us in rest)
        figures[_SHOWN:] = [(f"{len(rest)} more", *more)]
    rows: list[Row] = [
        # Operators have short names; shortening C++ would drop their library.
        (
            Cell(name, text=short_kernel_name(name, _NAME_WIDTH) if summary.is_device else name),
            *(calls / steps, us / calls, us / steps, us / total if total else None),
        )
        for name, calls, us in figures
    ]
    span, idle = summary.span_us / steps, summary.idle_us / steps
    caption = (
        f"Of {span:,.1f} µs a step nothing runs for {idle:,.1f}. Tracing makes gaps longer. "
        f"Without a profiler a step takes {window.decoded.step_us:,.1f} µs."
    )
    return Table(columns, rows, _title(kind, window), caption)


def _title(kind: str, window: Traced) -> str:
    return f"Time per {kind}: decode={window.decoded.decode} ({window.decoded.steps} steps)"
