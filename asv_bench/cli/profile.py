"""`profile`: where the time of a decode step goes, per kernel, and against memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.explain.trace import Decoded, Event, TraceSummary, Window, read_events, torch_trace
from asv_bench.memory import Bandwidth, Role, kernel_roles, read_bandwidth
from asv_bench.output.console import Progress
from asv_bench.output.record import Record, require_writable
from asv_bench.output.table import Column, Row, Table, digits, percent
from asv_bench.process.machine import chosen_device
from asv_bench.run.settings import PROFILE_DIR, ModelFlags
from asv_bench.session.options import Outputs
from asv_bench.words import counted
from asv_bench.workloads.named import WORKLOADS, workload_named

_SHOWN = 20
_REST = "all else"


def run(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "scheduler",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps in a window.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="The workload scaled down.")] = False,
    profile_dir: Annotated[
        Path | None, typer.Option(help="Where artifacts go (default: reports/profile).")
    ] = None,
    *,
    asked: ModelFlags,
    files: Outputs,
) -> None:
    """Show the time per kernel of a window of decode steps, and on a GPU the bytes, time and share
    of the bandwidth of each part of a fused step.
    """
    named = workload_named(workload)
    device = chosen_device(device)
    engine = {"dtype": "auto", **asked.engine(named, device, is_quick=quick)}
    window = Window(workload=workload, quick=quick, engine=engine, steps=steps)
    path = (profile_dir or PROFILE_DIR).resolve() / window.shape().name / "torch.trace.json.gz"
    require_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = Record("profile", {**asdict(window), **engine})
    console = files.console
    threads = counted(record.threads, "thread")
    console.print(f"profiling {window.shape().name} with {engine['model']}, {threads}")
    record.look_around(console, [device])

    with Progress(console, "tracing", unit="windows"):
        decoded, [summary, *_] = torch_trace(window, path)
    tables = [work_table(decoded, summary)]
    bandwidth = read_bandwidth(device)
    if bandwidth and (parts := role_table(decoded, read_events(path), bandwidth)):
        tables.append(parts)
        record.results = {"read_bandwidth": asdict(bandwidth), "parts": parts.to_json()}
    files.show(*tables)
    console.print(f"trace: {path}")
    record.results |= {"window": asdict(decoded), "summary": asdict(summary)}
    console.print(f"record: {record.write(files.json)}")


def work_table(decoded: Decoded, summary: TraceSummary) -> Table:
    """Kernels by their time; operators where no device worked."""
    kind, steps = "kernel" if summary.is_device else "operator", decoded.steps
    columns = [
        Column(kind, kind, kind="text"),
        Column("calls", "calls", "a step", digits(2)),
        Column("us_a_call", "µs", "a call", digits(2)),
        Column("us_a_step", "µs", "a step", digits(2)),
        Column("share", "share", "", percent(1)),
    ]
    total = sum(one.total_us for one in summary.work)
    rows: list[Row] = [
        (
            *(one.name, one.calls / steps, one.total_us / one.calls, one.total_us / steps),
            one.total_us / total if total else None,
        )
        for one in summary.work[:_SHOWN]
    ]
    title = f"Time per {kind}: decode={decoded.decode} ({steps} steps)"
    caption = (
        f"Of {summary.span_us / steps:,.1f} µs a step nothing runs for "
        f"{summary.idle_us / steps:,.1f}. Tracing makes gaps longer."
    )
    return Table(columns, rows, title, caption)


def role_table(decoded: Decoded, events: Sequence[Event], bandwidth: Bandwidth) -> Table | None:
    """Each part of a fused step against the bandwidth of memory; None where no step was fused.

    Copies are left out: on streams of their own they overlap with the kernels of a step by design.
    """
    work = sorted((one for one in events if one.cat == "kernel"), key=lambda one: one.ts)
    roles = [str(role or _REST) for role in kernel_roles(one.name for one in work)]
    if Role.HEAD not in roles:
        return None
    kernels: dict[str, Counter[str]] = defaultdict(Counter)
    spent: dict[str, float] = defaultdict(float)
    reached = work[0].ts
    for event, role in zip(work, roles, strict=True):
        kernels[role][event.name] += 1
        # Under dependent launch a kernel starts before the one before it has ended, and waits.
        spent[role] += max(0.0, event.end - max(event.ts, reached))
        reached = max(reached, event.end)
    read = {str(role): moved for role, moved in decoded.bytes.items()}
    if Role.ATTENTION_IN not in kernels:
        # One kernel does both.
        read[Role.ATTENTION] += read.pop(Role.ATTENTION_IN)
    columns = [
        Column("part", "part", kind="text"),
        Column("kernels", "kernel", kind="text", show=", ".join),
        Column("calls", "calls", "a step", digits(2)),
        Column("bytes", "MB", "a step", lambda count: f"{count / 1e6:,.2f}"),
        Column("us", "µs", "a step", digits(1)),
        Column("fraction", "of band-", "width", percent(1)),
    ]

    def row(name: str, us: float, moved: float | None) -> Row:
        us /= decoded.steps
        rate = 1e6 * moved / us / bandwidth.bytes_per_second if moved and us else None
        names = [one for one, _ in kernels[name].most_common()]
        calls = kernels[name].total() / decoded.steps
        return name, names or None, calls or None, moved, us, rate

    rows = [row(name, spent[name], read.get(name)) for name in (*read, _REST)]
    rows += [(), row("step", reached - work[0].ts, sum(read.values()))]
    caption = (
        f"Each sequence attends to {decoded.context:,.0f} tokens. Times are without waiting for "
        f"the kernel before. Measured read bandwidth {bandwidth.bytes_per_second / 1e12:.2f} TB/s."
    )
    return Table(columns, rows, "Parts of a step against the bandwidth of memory", caption)
