"""`headline`: measure the named workloads in fresh processes and write reports/headline.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asv_bench.cli.options import place_of_figures
from asv_bench.errors import Refused
from asv_bench.git.working_tree import working_tree
from asv_bench.output.console import make_console, print_sentences, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.record import (
    REPOSITORY,
    Record,
    require_places,
    write_json,
)
from asv_bench.output.table import Table
from asv_bench.process.kept_processes import begun_run, finish_run, resumed_run
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.process.threads import threads_text
from asv_bench.run.jobs import (
    Measured,
    engine_jobs,
    measure_jobs,
    process_contradictions,
)
from asv_bench.run.tables import headline_table
from asv_bench.workloads.named import HEADLINE_WORKLOADS, workloads_named

HEADLINE = REPOSITORY / "reports" / "headline.json"
PROCESSES = 5


def headline(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            help="JSON file for the figures, a table beside it (default: reports/headline.json).",
        ),
    ] = None,
    workloads: Annotated[
        str,
        typer.Option(
            "--workloads", "--workload", help="Workloads to measure, separated by commas."
        ),
    ] = ",".join(HEADLINE_WORKLOADS),
    processes: Annotated[
        int, typer.Option(min=1, help="Processes for each workload; figures are their medians.")
    ] = PROCESSES,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    model: Annotated[
        str | None,
        typer.Option("--model", "--hf-model-id", help="Model (default: the device's own)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled-down workloads; needs --output.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the newest run of this commit with these options that was cut short.",
        ),
    ] = False,
) -> None:
    """Measure the named workloads in fresh processes and write reports/headline.json."""
    names = tuple(one.name for one in workloads_named(workloads))
    facts = machine_facts()
    if output is not None and output.suffix != ".json":
        raise Refused(f"--output must name a file that ends in .json, and {output} does not.")
    target = place_of_figures(HEADLINE, output, facts)
    if output is None and (not set(HEADLINE_WORKLOADS) <= set(names) or model is not None or quick):
        raise Refused(
            f"{HEADLINE.relative_to(REPOSITORY)} holds figures of {', '.join(HEADLINE_WORKLOADS)} "
            "and perhaps others, at full size with the built-in model; say where these go with "
            "--output."
        )
    table_path = target.with_suffix(".md")
    require_places(None, target, table_path)
    arguments = ["--device", device]
    arguments += ["--model", model] if model else []
    arguments += ["--quick"] if quick else []
    jobs = engine_jobs(names, processes, arguments)
    record = Record(
        "headline",
        {
            "workloads": list(names),
            "processes": processes,
            "arguments": arguments,
        },
        machine=facts,
        # Half a run has changed these.
        tree=working_tree(REPOSITORY).apart_from(REPOSITORY, target, table_path),
    )
    console = make_console()
    commit = record.tree.label
    title = f"{facts.gpu or facts.cpu}, {threads_text(record.threads)}, commit {commit}"

    def write(measured: Measured, ended: int) -> Table:
        """Write the figures after each round, so that an interrupted run keeps them."""
        rows = measured.rows()
        content = {"commit": commit, "machine": facts.to_json(), "rows": rows}
        incomplete = "" if ended == len(jobs) else f"{ended} of {len(jobs)} processes"
        if incomplete:
            content["incomplete"] = incomplete
        write_json(target, content, indent=2)
        table = headline_table(rows, ", ".join(filter(None, (title, incomplete))))
        write_text(table_path, table.to_markdown())
        return table

    folder = resumed_run(record) if resume else begun_run(record)
    if resume:
        record.notes.append(f"{len(list(folder.glob('*-*.json')))} processes had run before.")
        print_sentences(console, record.notes)
    record.look_around(console, [chosen_device(device)])
    measured = measure_jobs(jobs, folder, console, write)
    record.notes += measured.notes
    record.results = {"rows": measured.rows(), "processes": measured.processes}
    record.warn(console, process_contradictions(one["figures"] for one in measured.processes))
    path = record.write()
    print_table(console, write(measured, len(jobs)))
    finish_run(folder)
    console.print(f"figures: {target}, beside it {table_path.name}")
    console.print(f"record: {path}, samples in {folder}")
