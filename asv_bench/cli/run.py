"""`run WORKLOAD`: measure the working tree on a named workload; and `run headline`, on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from asv_bench.cli.headline import headline
from asv_bench.run.measure import measure_and_report
from asv_bench.run.settings import RunFlags, settle
from asv_bench.session.options import Outputs
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
        app.command(name, help=workload.sentence)(_measuring(name, "run"))
    app.command("headline")(headline)
    return app


def _list(is_wanted: bool) -> None:
    if is_wanted:
        for name, workload in WORKLOADS.items():
            typer.echo(f"{name:18}{workload.sentence}")
        raise typer.Exit


def _measuring(name: str, command: str) -> Callable[..., None]:
    def measure(flags: RunFlags, files: Outputs) -> None:
        measure_and_report(settle(name, flags, command), files)

    measure.__doc__ = f"Measure the workload {name}, as `run {name}` does."
    return measure


scheduler = _measuring("scheduler", "scheduler")
streaming = _measuring("streaming", "streaming")
