"""`run WORKLOAD`: measure the working tree on a named workload, and `headline`, on all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from asv_bench.cli.headline import headline
from asv_bench.run.flags import PresetFlags, RunFlags, with_flags
from asv_bench.run.session import measure_and_report
from asv_bench.run.settings import settle
from asv_bench.workloads.named import WORKLOADS


def workloads() -> typer.Typer:
    """`run`, with a command for each workload, and one for all of them."""
    app = typer.Typer(no_args_is_help=True)

    @app.callback(invoke_without_command=True)
    def run(
        list_workloads: Annotated[
            bool,
            typer.Option("--list", is_eager=True, callback=_list, help="Print the workloads."),
        ] = False,
    ) -> None:
        """Measure the working tree's engine on a named workload."""

    for name, workload in WORKLOADS.items():
        app.command(name, help=workload.sentence)(_measuring(name))
    app.command("headline")(headline)
    return app


@with_flags(PresetFlags)
def scheduler(given: PresetFlags) -> None:
    """`run scheduler`, with older names of some flags: throughput and latencies."""
    measure_and_report(settle(given.workload or "scheduler", given.plain(), "scheduler"))


@with_flags(PresetFlags)
def streaming(given: PresetFlags) -> None:
    """`run streaming`, with older names of some flags: latency percentiles."""
    flags = given.plain()
    flags = replace(flags, stream_interval=flags.stream_interval or 1)
    measure_and_report(settle(given.workload or "streaming", flags, "streaming"))


def _list(is_wanted: bool) -> None:
    if is_wanted:
        for name, workload in WORKLOADS.items():
            typer.echo(f"{name:18}{workload.sentence}")
        raise typer.Exit


def _measuring(name: str) -> Callable[..., None]:
    @with_flags(RunFlags)
    def measure(flags: RunFlags) -> None:
        measure_and_report(settle(name, flags))

    return measure
