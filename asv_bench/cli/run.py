"""`run WORKLOAD`: measure the working tree on a named workload, and `headline`, on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from asv_bench.run.flags import PresetFlags, RunFlags, add_command
from asv_bench.run.headline import headline
from asv_bench.run.session import measure_and_report
from asv_bench.run.settings import settle
from asv_bench.workloads.named import WORKLOADS

HEADLINE_HELP = "Measure the named workloads in fresh processes and write reports/headline.json."
PRESETS = {
    "scheduler": "`run scheduler`, with older names of some flags: throughput and latencies.",
    "streaming": "`run streaming`, with older names of some flags: latency percentiles.",
}


def register(app: typer.Typer) -> None:
    """Add `run` with a command for each workload, and its presets, to `app`."""
    workloads = typer.Typer(
        help="Measure the working tree's engine on a named workload.", no_args_is_help=True
    )

    @workloads.callback(invoke_without_command=True)
    def run(
        list_workloads: Annotated[
            bool,
            typer.Option("--list", is_eager=True, callback=_list, help="Print the workloads."),
        ] = False,
    ) -> None:
        """Measure the working tree's engine on a named workload."""

    for name, workload in WORKLOADS.items():
        add_command(workloads, name, RunFlags, _measure(name), workload.sentence)
    for name, help_text in PRESETS.items():
        add_command(app, name, PresetFlags, _measure_preset(name), help_text)
    for group in (workloads, app):
        group.command("headline", help=HEADLINE_HELP)(headline)
    app.add_typer(workloads, name="run")


def _list(is_wanted: bool) -> None:
    if is_wanted:
        for name, workload in WORKLOADS.items():
            typer.echo(f"{name:16}{workload.sentence}")
        raise typer.Exit


def _measure(name: str) -> Callable[[RunFlags], None]:
    def measure(flags: RunFlags) -> None:
        measure_and_report(settle(name, flags))

    return measure


def _measure_preset(name: str) -> Callable[[PresetFlags], None]:
    def measure(given: PresetFlags) -> None:
        flags = given.plain()
        if name == "streaming":
            flags = replace(flags, stream_interval=flags.stream_interval or 1)
        settings = settle(given.workload or name, flags, command=name)
        measure_and_report(settings)

    return measure
