"""`run headline`: the named workloads in fresh processes, and the rows of reports/headline.json."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.working_tree import working_tree
from asv_bench.output.console import make_console, print_sentences, print_table
from asv_bench.output.contradictions import processes_apart
from asv_bench.output.destinations import write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, Record, require_places, write_json
from asv_bench.output.stored_json import UnreadableFile, positive, read_stored, text
from asv_bench.output.table import Table
from asv_bench.process.machine import chosen_device, machine_facts
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.process.threads import threads_text
from asv_bench.run.tables import HEADLINE_COLUMNS, headline_table
from asv_bench.session.options import place_of_figures
from asv_bench.workloads.named import HEADLINE_WORKLOADS, workloads_named

HEADLINE = REPOSITORY / "reports" / "headline.json"
MODE = "online"
_FIGURES = [column.key for column in HEADLINE_COLUMNS[3:]]
_UNFINISHED = "run.json"
"""In the folder of a run until it is finished: what it measures."""


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
    ] = 5,
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
    names = [one.name for one in workloads_named(workloads)]
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
    arguments = ["--device", device, *(["--model", model] if model else [])]
    arguments += ["--quick"] if quick else []
    record = Record(
        "headline",
        {"workloads": names, "processes": processes, "arguments": arguments},
        machine=facts,
        # Half a run has changed these.
        tree=working_tree(REPOSITORY).apart_from(REPOSITORY, target, table_path),
    )
    commit = record.tree.label
    title = f"{facts.gpu or facts.cpu}, {threads_text(record.threads)}, commit {commit}"
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in names}

    def write(ended: int) -> Table:
        """Write the figures after each round, so that an interrupted run keeps them."""
        rows = [headline_row(row) for row in measured.values()]
        record.results["rows"] = rows
        content = {"commit": commit, "machine": facts.to_json(), "rows": rows}
        whole = title
        if ended < processes:
            content["incomplete"] = f"{ended * len(names)} of {processes * len(names)} processes"
            whole += f", {content['incomplete']}"
        write_json(target, content, indent=2)
        table = headline_table(rows, whole)
        write_text(table_path, table.to_markdown())
        return table

    console = make_console()
    folder = resumed_run(record) if resume else record.default_path().with_suffix("")
    if resume:
        record.notes.append(f"{len(list(folder.glob('*-*.json')))} processes had run before.")
        print_sentences(console, record.notes)
    write_json(folder / _UNFINISHED, _description(record))
    record.look_around(console, [chosen_device(device)])
    kept: list[dict[str, Any]] = []
    with Progress(console, "headline", processes * len(names)) as progress:
        # Workloads take turns, so that the machine's drift affects all alike.
        for process in range(processes):
            for name in names:
                label = f"{name}, process {process + 1}"
                progress.name(label)
                path = folder / f"{name}-{process}.json"
                notes: list[str] = []
                figures = measured_or_kept(label, name, arguments, path, notes)
                print_sentences(console, notes)
                record.notes += notes
                measured[name].append(figures)
                kept.append({"record": path.name, "figures": figures})
                progress.advance()
            table = write(process + 1)
    record.results["processes"] = kept
    record.warn(console, process_contradictions(one["figures"] for one in kept))
    path = record.write()
    print_table(console, table)
    (folder / _UNFINISHED).unlink()
    console.print(f"figures: {target}, beside it {table_path.name}")
    console.print(f"record: {path}, samples in {folder}")


def resumed_run(record: Record) -> Path:
    """The folder of the newest interrupted run of the same measurement.

    Raises Refused if there is none, or the tree is not that of its commit.
    """
    if record.tree.dirty:
        raise Refused(
            "--resume was given, but the tree differs from its commit, so that what had been "
            "measured may be of another: commit the changes, or leave it out."
        )
    runs = record.default_path().parent
    begun = runs.glob(f"{record.command}-*/{_UNFINISHED}")
    complaints: list[str] = []
    for path in sorted(begun, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if read_stored(path, "a run that was cut short", dict) == _description(record):
                record.notes += complaints
                return path.parent
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
    raise Refused(
        f"--resume was given, but no {record.command} of this commit, on this machine and with the "
        f"same options, was cut short: nothing was measured. Leave it out to begin one."
        + "".join(f" {complaint}" for complaint in complaints)
    )


def _description(record: Record) -> dict[str, Any]:
    """What a run measures, as it is read from a file."""
    return {
        "settings": record.settings,
        "commit": record.tree.label,
        "machine": json.loads(json.dumps(record.machine.to_json() | {"state": None})),
        "threads": record.threads,
    }


def measured_or_kept(
    label: str, workload: str, arguments: Sequence[str], path: Path, notes: list[str]
) -> dict[str, Any]:
    """The figures of a process, which runs unless its record, with every sample, is there already.

    Raises MeasurementFailed if it failed; the sentence ends with its last output.
    """
    try:
        figures, throttled = process_at(path, label)
    except UnreadableFile as error:
        if path.exists():
            notes.append(f"{error} The process runs again.")
        run_process(label, workload, arguments, path)
        figures, throttled = process_at(path, label)
    notes += throttled
    return figures


def process_at(path: Path, label: str) -> tuple[dict[str, Any], list[str]]:
    """The figures of the record that a process left, and a sentence if the GPU was throttled."""
    return read_stored(
        path,
        "the record of a process",
        lambda record: (child_figures(record), throttle_warnings(label, record["gpu_state"])),
    )


def throttle_warnings(label: str, gpu_state: Mapping[str, Any]) -> list[str]:
    """A sentence for each state, before or after a process, in which the GPU was throttled."""
    return [
        f"{label}: the GPU was throttled {moment} the runs ({', '.join(state['clock_events'])})."
        for moment, state in gpu_state.items()
        if state is not None and state["throttled"]
    ]


def run_process(label: str, workload: str, arguments: Sequence[str], path: Path) -> None:
    """`run` a workload in a process of its own, which leaves its record at the path."""
    command = [sys.executable, "-m", "asv_bench", "run", workload, "--mode", MODE, *arguments]
    done = run_apart([*command, "--json", str(path)])
    if done.returncode:
        raise MeasurementFailed(
            f"{label} could not be measured (exit code {done.returncode}). It said:\n"
            f"{last_words(done.stderr or done.stdout)}"
        )


def child_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one process; raises what Python raises if its record holds others."""
    result = record["results"]["modes"][MODE]
    workload = record["settings"]["workload"]
    figures = {
        "workload": text(workload["name"]),
        "engine": "kvtrail",
        "batch": int(positive(workload["batch_size"])),
        "step_ms": result["step_ms"],
        "tokens_per_s": result["total_tokens_per_s"]["p50"],
        "ttft_ms": result["ttft_ms"]["p50"],
        "tpot_ms": result["tpot_ms"]["p50"],
        "itl_p99_ms": result["itl_ms"]["p99"],
        "floor_ms": result["floor_ms"],
        "fraction_of_floor": result["fraction_of_floor"],
    }
    for name in _FIGURES:
        if figures[name] is not None:
            positive(figures[name])
    return figures


def process_contradictions(processes: Iterable[Mapping[str, Any]]) -> list[str]:
    """What to know where processes of one workload gave steps far apart."""
    steps = ((f"the step of {figures['workload']}", figures["step_ms"]) for figures in processes)
    return processes_apart(steps, "ms")


def headline_row(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of `headline.json`: the median of each figure over the processes."""
    row = {name: processes[0][name] for name in ("workload", "engine", "batch")}
    for name in _FIGURES:
        values = [one[name] for one in processes if one[name] is not None]
        row[name] = statistics.median(values) if values else None
    return row
