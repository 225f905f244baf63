"""`scheduler`: decode throughput, with every request there from the start."""

from __future__ import annotations

import typer

from asv_bench.output.console import make_console
from asv_bench.run.flags import SchedulerFlags, add_command
from asv_bench.run.session import measure_and_report
from asv_bench.run.settings import settle

COLUMNS = ("p50", "mean")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    add_command(
        app,
        "scheduler",
        SchedulerFlags,
        run,
        "Decode throughput and latencies of a batch of requests (workload `scheduler`).",
    )


def run(flags: SchedulerFlags) -> None:
    """Measure what `flags` ask for."""
    measure_and_report(settle("scheduler", flags), COLUMNS, make_console())
