"""`run WORKLOAD`: measure the working tree on a named workload; and `run headline`, on several."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.errors import Refused
from asv_bench.measure.processes import run_apart
from asv_bench.output.console import Progress, make_console, print_table
from asv_bench.output.record import (
    REPOSITORY,
    WORKPLACE,
    Record,
    require_places,
    write_json,
    write_text,
)
from asv_bench.output.stored_json import positive, read_stored, text
from asv_bench.output.table import Column, Table, digits, percent
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import REFERENCE_MACHINES, chosen_device, machine_facts
from asv_bench.run.measure import measure_and_report
from asv_bench.run.settings import RunFlags, settle
from asv_bench.session.options import MOST, Outputs
from asv_bench.words import counted
from asv_bench.workloads.named import HEADLINE_WORKLOADS, WORKLOADS, workloads_named

HEADLINE = REPOSITORY / "reports" / "headline.json"
MODE = "online"
_FIGURES = {
    "step_ms": ("step_ms",),
    "tokens_per_s": ("total_tokens_per_s", "p50"),
    "ttft_ms": ("ttft_ms", "p50"),
    "tpot_ms": ("tpot_ms", "p50"),
    "itl_p99_ms": ("itl_ms", "p99"),
    "floor_ms": ("floor_ms",),
    "fraction_of_floor": ("fraction_of_floor",),
}
"""The figures of a row, and where the record of a process has them."""
COLUMNS = (
    Column("workload", "workload", kind="name"),
    Column("engine", "engine", kind="name"),
    Column("batch", "batch", show=str),
    Column("step_ms", "step", "ms", digits(3)),
    Column("tokens_per_s", "tokens/s", show=digits(0)),
    Column("ttft_ms", "TTFT", "ms", digits(2)),
    Column("tpot_ms", "TPOT", "ms", digits(3)),
    Column("itl_p99_ms", "ITL p99", "ms", digits(3)),
    Column("floor_ms", "floor", "ms", digits(3)),
    Column("fraction_of_floor", "of floor", show=percent(1)),
)


def workloads() -> typer.Typer:
    """`run`, with a command for each workload, and one for several of them."""
    app = typer.Typer(no_args_is_help=True)

    @app.callback(invoke_without_command=True)
    def run(
        list_workloads: Annotated[
            bool, typer.Option("--list", is_eager=True, callback=_list, help="Print the workloads.")
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


def headline(
    output: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for the figures, a table beside it (default: reports/headline.json)."
        ),
    ] = None,
    workloads: Annotated[
        str, typer.Option(help="Workloads to measure, separated by commas.")
    ] = ",".join(HEADLINE_WORKLOADS),
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=MOST, help="Processes for each workload; figures are their medians."
        ),
    ] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled-down workloads; needs --output.")
    ] = False,
) -> None:
    """Measure the named workloads in fresh processes and write reports/headline.json."""
    names = [one.name for one in workloads_named(workloads)]
    facts = machine_facts()
    if output is not None and output.suffix != ".json":
        raise Refused(f"--output must name a file that ends in .json, and {output} does not.")
    kept = HEADLINE.relative_to(REPOSITORY)
    if output is None and not facts.is_reference:
        raise Refused(
            f"{kept} is of a reference machine ({', '.join(REFERENCE_MACHINES)}) and this one is "
            f"{facts.name!r}; say where its own goes with --output."
        )
    if output is None and (quick or not set(HEADLINE_WORKLOADS) <= set(names)):
        raise Refused(
            f"{kept} holds figures of {', '.join(HEADLINE_WORKLOADS)} and perhaps others, at full "
            "size; say where these go with --output."
        )
    target = output or HEADLINE
    table_path = target.with_suffix(".md")
    require_places(None, target, table_path)
    arguments = ["--quick"] if quick else []
    settings = {"workloads": names, "processes": processes, "arguments": arguments}
    record = Record("headline", settings, machine=facts)
    console = make_console()
    record.look_around(console, [chosen_device("auto")])
    folder = record.default_path().with_suffix("")
    measured: list[dict[str, Any]] = []
    total = processes * len(names)
    with checkout_lock(WORKPLACE), Progress(console, "headline", total) as progress:
        # Workloads take turns, so that the machine's drift affects all alike.
        for process in range(processes):
            for name in names:
                label = f"{name}, process {process + 1}"
                progress.show(what=label)
                path = folder / f"{name}-{process}.json"
                run_process(label, name, arguments, path)
                measured.append(read_stored(path, "the record of a process", figures_of))
                progress.advance()
            # After each round, so that an interrupted run keeps them.
            rows = [headline_row(measured[place :: len(names)]) for place in range(len(names))]
            content = {"commit": record.tree.label, "machine": facts.to_json(), "rows": rows}
            title = f"{facts.gpu or facts.cpu}, {counted(record.threads, 'thread')}, "
            title += f"commit {record.tree.label}"
            if len(measured) < total:
                content["incomplete"] = f"{len(measured)} of {total} processes"
                title += f", {content['incomplete']}"
            write_json(target, content, indent=2)
            table = Table(COLUMNS, [[row[one.key] for one in COLUMNS] for row in rows], title)
            write_text(table_path, table.to_markdown())
    record.results |= {"rows": rows, "processes": measured}
    path = record.write()
    print_table(console, table)
    console.print(f"figures: {target}, beside it {table_path.name}")
    console.print(f"record: {path}, samples in {folder}")


def run_process(label: str, workload: str, arguments: Sequence[str], path: Path) -> None:
    """`run` a workload in a process of its own, which leaves its record at the path.

    Raises MeasurementFailed if it fails; the sentence ends with its last output.
    """
    command = [sys.executable, "-m", "asv_bench", "run", workload, "--mode", MODE, *arguments]
    run_apart([*command, "--json", str(path)], f"{label} could not be measured")


def figures_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the record that a process left."""
    workload = record["settings"]["workload"]
    figures: dict[str, Any] = {"workload": text(workload["name"]), "engine": "kvtrail"}
    figures["batch"] = int(positive(workload["batch_size"]))
    for name, place in _FIGURES.items():
        value = record["results"]["modes"][MODE]
        for key in place:
            value = value[key]
        figures[name] = None if value is None else positive(value)
    return figures


def headline_row(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of `headline.json`: the median of each figure over the processes."""
    row = {name: processes[0][name] for name in ("workload", "engine", "batch")}
    for name in _FIGURES:
        values = [one[name] for one in processes if one[name] is not None]
        row[name] = statistics.median(values) if values else None
    return row
