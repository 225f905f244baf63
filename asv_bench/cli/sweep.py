"""`sweep`: decode attention and append at every batch size, against the bandwidth of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asv_bench.cli.options import figures_folder
from asv_bench.errors import Refused
from asv_bench.lab.sweep.sweep import CALLS, Swept, sweep, sweep_table
from asv_bench.memory.bandwidth import require_bandwidth
from asv_bench.output.console import make_console, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record, require_places
from asv_bench.output.tables import markdown
from asv_bench.packages import require_packages
from asv_bench.process.machine import chosen_device, machine_facts

ROUNDS = 7
MOST_SEQUENCES = 256


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "sweep",
        help="Time decode attention and append at every batch size: TB/s, and where time falls.",
    )(run)


def run(
    most: Annotated[int, typer.Option(min=1, help="Largest batch.")] = MOST_SEQUENCES,
    every: Annotated[int, typer.Option(min=1, help="Batch sizes 1, 1 + EVERY, ...")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Times over all batch sizes.")] = ROUNDS,
    device: Annotated[str, typer.Option(help="auto, cuda or cuda:N.")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Folder of sweep.json, .md and .svg (default: reports).")
    ] = None,
) -> None:
    """Time every call of `asv_bench.lab.sweep.sweep.CALLS` and write what came out.

    Raises
    ------
    Refused
        Without a GPU.
    """
    place = chosen_device(device)
    if not place.startswith("cuda"):
        raise Refused(
            "sweep needs a GPU: it times kernels, and a CPU runs torch operators in their place."
        )
    facts = machine_facts()
    folder = figures_folder("sweep", output, facts)
    require_places(folder / "sweep.json", folder / "sweep.md", folder / "sweep.svg")
    require_packages("matplotlib")
    # The largest is always there.
    batches = sorted({*range(1, most + 1, every), most})
    record = Record("sweep", {"batches": batches, "rounds": rounds}, machine=facts)
    console = make_console()
    record.look_around(console, [place])
    bandwidth = require_bandwidth(place)

    # Not at the top: torch and matplotlib would make every command wait.
    import torch

    from asv_bench.lab.sweep.calls import SweepCalls
    from asv_bench.lab.sweep.plot import sweep_svg

    results: list[Swept] = []
    total = len(CALLS) * rounds * len(batches)
    with Progress(console, "sweep", total, "batches", is_apart=False) as progress:
        for call in CALLS:
            progress.name(str(call))
            calls = SweepCalls(call, most, torch.device(place))
            result = sweep(
                call,
                batches,
                calls.timer,
                rounds=rounds,
                bytes_per_second=bandwidth.bytes_per_second,
                on_batch=progress.advance,
                on_round=calls.place,
            )
            results.append(result)
            record.samples.append(result.to_json())
    title = record.title("float16")
    table = sweep_table(results, f"read bandwidth {bandwidth.bytes_per_second / 1e12:.2f} TB/s")
    print_table(console, table)
    record.results = {"read_bandwidth": bandwidth.to_json()}
    path = record.write(folder / "sweep.json")
    text = f"# Sweep over the batch: {title}\n\n{markdown(table)}"
    write_text(folder / "sweep.md", text)
    write_text(folder / "sweep.svg", sweep_svg(results, title))
    console.print(f"record: {path}, beside it sweep.md and sweep.svg", soft_wrap=True)
