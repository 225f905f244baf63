"""`append`: what appending keys and values costs within decode steps of the workloads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.cli.options import figures_folder
from asv_bench.errors import Refused
from asv_bench.lab.sweep.sweep import Call
from asv_bench.lab.tune.append_cost import AppendCost, AppendTimes, append_costs, append_table
from asv_bench.memory.bandwidth import require_bandwidth
from asv_bench.output.console import make_console, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record, require_places
from asv_bench.output.tables import markdown
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.workloads.named import Workload, default_model, workload_named

WORKLOADS = ("scheduler", "streaming", "wide")
DTYPE = "float16"
PARTS = 5
CAPTURES = 8
LEAST_CAPTURES = 6
"""Fewer give no 95 % interval."""
ROUNDS = 4


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "append",
        help="Time decode steps with and without append's stores, against its bytes' time.",
    )(run)


def run(
    workloads: Annotated[
        str, typer.Option(help="Workloads to look at, separated by commas.")
    ] = ",".join(WORKLOADS),
    parts: Annotated[
        int, typer.Option(min=1, help="Equal parts of a run's contexts, each timed in its middle.")
    ] = PARTS,
    captures: Annotated[
        int, typer.Option(min=LEAST_CAPTURES, help="Captures of a step with stores and without.")
    ] = CAPTURES,
    rounds: Annotated[int, typer.Option(min=1, help="Times over all captures.")] = ROUNDS,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Folder of append.json and .md (default: reports).")
    ] = None,
) -> None:
    """Time steps over each workload's contexts and write what append costs in them.

    Raises
    ------
    Refused
        Without a Hopper GPU.
    """
    named = [workload_named(name.strip()) for name in workloads.split(",")]
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused("append needs a GPU: it times captured steps on the device.")
    facts = machine_facts()
    folder = figures_folder("append", output, facts)
    require_places(folder / "append.json", folder / "append.md")
    model = default_model("cuda")
    settings = {
        "workloads": [one.name for one in named],
        "parts": parts,
        "captures": captures,
        "rounds": rounds,
        "model": model,
        "dtype": DTYPE,
    }
    record = Record("append", settings, machine=facts)
    console = make_console()
    record.look_around(console, [place])
    bandwidth = require_bandwidth(place)

    # Not at the top: every command would wait for torch.
    from asv_bench.lab.tune.append_steps import time_append
    from asv_bench.lab.tune.candidates import Point
    from asv_bench.lab.tune.step_bench import TIMED_LEAD, hopper_bench

    bench, config = hopper_bench("append", place, model, DTYPE)
    heads = Call("append", config.num_heads, config.num_kv_heads, config.head_dim, 1)
    costs: list[AppendCost] = []
    total = len(named) * parts * rounds
    with Progress(console, "append", total, "rounds", is_apart=False) as progress:
        for workload in named:
            progress.name(workload.name)
            timed: list[AppendTimes] = []
            for context in first_contexts(workload, parts, TIMED_LEAD):
                point = Point(workload.resident, context)
                whole, bare = time_append(
                    bench.rows_at(point),
                    captures=captures,
                    rounds=rounds,
                    on_round=progress.advance,
                )
                timed.append(
                    AppendTimes(
                        workload.name,
                        point.rows,
                        point.context + TIMED_LEAD,
                        config.num_layers,
                        heads.bytes_moved(point.rows),
                        whole,
                        bare,
                    )
                )
                record.samples.append(asdict(timed[-1]))
            costs += append_costs(timed)
    title = record.title(f"{model} {DTYPE}")
    rate = bandwidth.bytes_per_second
    table = append_table(costs, rate)
    print_table(console, table)
    record.results = {
        "read_bandwidth": bandwidth.to_json(),
        "costs": [cost.to_json(rate) for cost in costs],
    }
    path = record.write(folder / "append.json")
    text = f"# Append within a step: {title}\n\n{markdown(table)}"
    write_text(folder / "append.md", text)
    console.print(f"record: {path}, beside it append.md", soft_wrap=True)


def first_contexts(workload: Workload, parts: int, lead: float) -> list[int]:
    """Tokens that the first step attends to, where those that are timed have a part's middle.

    Parameters
    ----------
    parts
        Into how many equal parts the contexts of the workload's steps are cut.
    lead
        By how many tokens those that are timed attend to more than the first, on the mean.
    """
    middles = (
        workload.mean_prompt + workload.new_tokens * (part + 0.5) / parts for part in range(parts)
    )
    return [max(1, round(middle - lead)) for middle in middles]
