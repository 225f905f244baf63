"""`run WORKLOAD`: measure the working tree on a named workload; and `run headline`, on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from asv_bench.cli.headline import headline
from asv_bench.run.flags import PANELS, PRESET_PANELS, RunFlags, plain_flags, with_flags
from asv_bench.run.report import measure_and_report
from asv_bench.run.settings import settle
from asv_bench.workloads.named import WORKLOADS


def workloads() -> typer.Typer:
    """`run`, with a command for each workload, and one for several of them."""
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


def _list(is_wanted: bool) -> None:
    if is_wanted:
        for name, workload in WORKLOADS.items():
            typer.echo(f"{name:18}{workload.sentence}")
        raise typer.Exit


def _measuring(name: str) -> Callable[..., None]:
    @with_flags(PANELS)
    def measure(flags: RunFlags) -> None:
        measure_and_report(settle(name, flags))

    return measure


@with_flags(PRESET_PANELS)
def scheduler(given: RunFlags) -> None:
    """`run scheduler`, with older names of some flags: throughput and latencies."""
    measure_and_report(settle("scheduler", plain_flags(given), "scheduler"))


@with_flags(PRESET_PANELS)
def streaming(given: RunFlags) -> None:
    """`run streaming`, with older names of some flags: latency percentiles."""
    given.stream_interval = given.stream_interval or 1
    measure_and_report(settle("streaming", plain_flags(given), "streaming"))
