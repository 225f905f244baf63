"""`streaming`: the latencies that readers of token streams see."""

from __future__ import annotations

import typer

from asv_bench.output.console import make_console
from asv_bench.run.flags import StreamingFlags, add_command
from asv_bench.run.session import measure_and_report
from asv_bench.run.settings import settle

COLUMNS = ("p50", "p95", "p99", "mean")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    add_command(
        app,
        "streaming",
        StreamingFlags,
        run,
        "Latency percentiles of requests whose tokens are streamed (workload `streaming`).",
    )


def run(flags: StreamingFlags) -> None:
    """Measure what `flags` ask for."""
    measure_and_report(settle("streaming", flags), COLUMNS, make_console())
