"""`roofline`: set every kernel of a decode step against the bandwidth of memory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.profile_child import Window
from asv_bench.explain.trace import read_events
from asv_bench.explain.traced import torch_trace
from asv_bench.lab.roofline.roofline import Roofline, roofline, roofline_table
from asv_bench.lab.roofline.step_timeline import timed_steps
from asv_bench.memory.bandwidth import Bandwidth, require_bandwidth
from asv_bench.memory.floor import ModelConfig, Role, step_traffic
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.output.table_files import TableFiles
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.session.options import place_of_figures
from asv_bench.workloads.named import HEADLINE_WORKLOADS, Workload, workloads_named

RECORD = REPOSITORY / "reports" / "roofline.json"
STEPS = 48
DTYPES = ("float16", "bfloat16")


def run(
    workloads: Annotated[
        str, typer.Option(help="Workloads to look at, separated by commas.")
    ] = ",".join(HEADLINE_WORKLOADS),
    steps: Annotated[int, typer.Option(min=3, help="Decode steps to trace.")] = STEPS,
    hf_model_id: Annotated[
        str | None,
        typer.Option("--model", "--hf-model-id", help="Built-in model (default: the workload's)."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(help="float16 or bfloat16 (default: the workload's, or float16)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of roofline.json and .md (default: reports).")
    ] = None,
) -> None:
    """Show bytes, time and share of the bandwidth of every kernel of a decode step."""
    named = workloads_named(workloads)
    if dtype not in (None, *DTYPES):
        raise Refused(f"--dtype is {dtype!r}; fused steps run in {' or '.join(DTYPES)}.")
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused(
            "roofline needs a GPU: it times the fused kernels, which nothing else runs; `profile` "
            "shows where a CPU's time goes."
        )
    facts = machine_facts()
    path = place_of_figures(RECORD, output and output / RECORD.name, facts)
    page = path.with_suffix(".md")
    files = TableFiles(page, record=path)
    console = files.console
    windows = [
        _window(
            workload,
            steps,
            model=hf_model_id or workload.default_model(place),
            device=place,
            dtype=dtype or ("bfloat16" if workload.model else "float16"),
        )
        for workload in named
    ]
    for window in windows:
        _sizes(window.model)
    models = ", ".join(dict.fromkeys(f"{one.model} {one.dtype}" for one in windows))
    record = Record(
        "roofline",
        {"workloads": [one.name for one in named], "steps": steps, "models": models},
        machine=facts,
    )
    results: list[Roofline] = []
    record.look_around(console, [place])
    bandwidth = require_bandwidth(place)
    for window in windows:
        console.print(f"tracing {window.workload}")
        results.append(trace_roofline(window, bandwidth))
        record.samples.append({"window": asdict(window), "result": asdict(results[-1])})
    tables = [roofline_table(result) for result in results]
    record.results = {
        "read_bandwidth": asdict(bandwidth),
        "rooflines": [asdict(result) for result in results],
    }
    record.write(path)
    text = "\n".join(table.to_markdown() for table in tables)
    files.show(*tables, page=f"# Roofline: {record.title(models)}\n\n{text}")
    console.print(f"record: {path}, beside it {page.name}")


def trace_roofline(window: Window, bandwidth: Bandwidth) -> Roofline:
    """Trace one window in a process of its own and set it against the bandwidth.

    Raises MeasurementFailed if the process failed or its trace holds no fused steps.
    """
    workload, config = window.shape(), _sizes(window.model)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "window.trace.json.gz"
        decoded = torch_trace(window, path).decoded
        timed = timed_steps(read_events(path))
    context = window_context(workload, decoded.last_context, len(timed))
    traffic = step_traffic(
        config,
        dtype=window.dtype,
        batch_size=workload.resident,
        context=context,
        joins_attention=any(one.role is Role.WHOLE_ATTENTION for one in timed[0].kernels),
    )
    return roofline(
        workload.name,
        workload.resident,
        context,
        timed,
        traffic,
        bandwidth.bytes_per_second,
        decoded.step_us,
    )


def _sizes(model: str) -> ModelConfig:
    """The sizes of a built-in model, which is not loaded."""
    from engine.models.registry import RANDOM_CONFIGS, RANDOM_PREFIX

    config = RANDOM_CONFIGS.get(model.removeprefix(RANDOM_PREFIX))
    if config is None or not model.startswith(RANDOM_PREFIX):
        known = ", ".join(RANDOM_PREFIX + name for name in RANDOM_CONFIGS)
        raise Refused(f"roofline takes the built-in models ({known}), not {model!r}.")
    return config


def window_context(workload: Workload, last_context: float | None, steps: int) -> float:
    """Mean tokens attended to over `steps` steps, the last of which attended to `last_context`.

    Raises MeasurementFailed if the requests ended within the window.
    """
    if last_context is None:
        raise MeasurementFailed(
            f"the requests of {workload.name} ended within the window, so its context is not known."
        )
    return last_context - (steps - 1) / 2


def _window(workload: Workload, steps: int, *, model: str, device: str, dtype: str) -> Window:
    """A window in the middle of which the batch attends to the workload's mean context."""
    # About two steps have been launched when the window may begin.
    skip = round(workload.mean_context - workload.mean_prompt - steps / 2) - 2
    return Window(
        workload=workload.name,
        quick=False,
        model=model,
        device=device,
        dtype=dtype,
        decode="auto",
        steps=steps,
        skip=max(0, skip),
    )
