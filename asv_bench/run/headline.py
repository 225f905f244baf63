"""`headline`: the current figures of the named workloads, each measured in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.output.console import make_console, print_sentences, print_table
from asv_bench.output.destinations import write_text
from asv_bench.output.progress import Progress
from asv_bench.output.record import (
    REPOSITORY,
    Record,
    require_places,
    working_tree,
    write_json,
)
from asv_bench.output.tables import headline_table, markdown
from asv_bench.peers.jobs import PROCESSES as PEER_PROCESSES
from asv_bench.peers.jobs import measure_peers, merged_rows, peer_jobs
from asv_bench.process.kept_processes import begun_run, finish_run, kept_or_measured, resumed_run
from asv_bench.process.machine import REFERENCE_MACHINES, MachineFacts, chosen_device, machine_facts
from asv_bench.process.threads import measured_environment, threads_text
from asv_bench.run.headline_rows import (
    MODE,
    check_figures,
    child_figures,
    headline_row,
    process_contradictions,
    throttle_warnings,
)
from asv_bench.workloads.named import HEADLINE_WORKLOADS, default_model, workload_named

HEADLINE = REPOSITORY / "reports" / "headline.json"
PROCESSES = 5


@dataclass(frozen=True, slots=True)
class Job:
    """One workload in one process."""

    workload: str
    process: int
    record: Path
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """How a sentence names the job."""
        return f"{self.workload}, process {self.process + 1}"

    def command(self) -> list[str]:
        """The command line of the process."""
        command = "streaming" if self.workload.startswith("streaming") else "scheduler"
        return [
            *(sys.executable, "-m", "asv_bench", command, "--workload", self.workload),
            *("--mode", MODE, "--json", str(self.record), *self.arguments),
        ]


@dataclass(frozen=True, slots=True)
class HeadlineFile:
    """Where the figures go, anew whenever there are more: a run that is cut short loses none.

    Attributes
    ----------
    target
        The JSON file. The same stands beside it as a Markdown table.
    threads
        Of each process.
    """

    commit: str | None
    machine: MachineFacts
    target: Path
    threads: int

    def write(self, rows: list[dict[str, Any]], incomplete: str | None = None) -> Table:
        """Write the rows, and how far they go where that is not to the end; the table of them."""
        content = {"commit": self.commit, "machine": self.machine.to_json(), "rows": rows}
        if incomplete is not None:
            content["incomplete"] = incomplete
        write_json(self.target, content, indent=2)
        machine = self.machine.gpu or self.machine.cpu
        title = f"{machine}, {threads_text(self.threads)}, commit {self.commit}"
        table = headline_table(rows, title if incomplete is None else f"{title}, {incomplete}")
        write_text(self.target.with_suffix(".md"), markdown(table))
        return table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "headline",
        help="Measure the named workloads in fresh processes and write reports/headline.json.",
    )(run)


def run(
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
        int, typer.Option(min=1, help="Processes for each workload; figures are their medians.")
    ] = PROCESSES,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    hf_model_id: Annotated[
        str | None, typer.Option(help="Model (default: the device's own).")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled-down workloads; needs --output.")
    ] = False,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Measure transformers' generate too, after the engine."),
    ] = False,
    peer_processes: Annotated[
        int, typer.Option(min=1, help="Processes for each workload and peer that does not compile.")
    ] = PEER_PROCESSES,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the newest run of this commit with these options that was cut short.",
        ),
    ] = False,
) -> None:
    """Measure the workloads and write their figures."""
    names = tuple(name.strip() for name in workloads.split(","))
    for name in names:
        workload_named(name)
    facts = machine_facts()
    if output is not None and output.suffix != ".json":
        raise Refused(f"--output must name a file that ends in .json, and {output} does not.")
    standard = names == HEADLINE_WORKLOADS and hf_model_id is None and not quick
    target = output or committed_target(facts, standard=standard)
    require_places(None, target, target.with_suffix(".md"))
    arguments = ["--device", device]
    arguments += ["--hf-model-id", hf_model_id] if hf_model_id else []
    arguments += ["--quick"] if quick else []

    record = Record(
        "headline",
        {
            "workloads": list(names),
            "processes": processes,
            "peer_processes": peer_processes if peers else 0,
            "arguments": arguments,
        },
        machine=facts,
        # Half a run has changed these.
        tree=working_tree().apart_from(target, target.with_suffix(".md")),
    )
    console = make_console()
    folder = resumed_run(record) if resume else begun_run(record)
    if resume:
        record.notes.append(f"{len(list(folder.glob('*-*.json')))} processes had run before.")
        print_sentences(console, record.notes)
    record.look_around(console, [chosen_device(device)])
    # Workloads take turns, so that a slow drift of the machine falls on all of them alike.
    jobs = [
        Job(name, process, folder / f"{name}-{process}.json", tuple(arguments))
        for process in range(processes)
        for name in names
    ]
    file = HeadlineFile(record.tree.label, facts, target, record.threads)
    figures = measure_engine(jobs, record, file, console)
    rows = [headline_row(figures[name]) for name in names]
    record.results = {"rows": rows, "processes": figures}
    measured = list(chain.from_iterable(figures.values()))
    if peers:
        place = chosen_device(device)
        peer_tasks = peer_jobs(
            names,
            peer_processes,
            model=hf_model_id or default_model(place.partition(":")[0]),
            device=place,
            quick=quick,
        )
        outcome = measure_peers(
            peer_tasks,
            folder,
            console,
            on_rows=lambda so_far: file.write(
                merged_rows([*rows, *so_far]), "not all runs of the peers"
            ),
        )
        rows = merged_rows([*rows, *outcome.rows])
        record.notes += outcome.notes
        record.results |= {"rows": rows, "peers": outcome.processes}
        measured += [one["figures"] for one in outcome.processes]
    record.warn(console, process_contradictions(measured))
    path = record.write()
    print_table(console, file.write(rows))
    finish_run(folder)
    console.print(f"figures: {target}, beside it {target.stem}.md", soft_wrap=True)
    console.print(f"record: {path}, samples in {folder}", soft_wrap=True)


def measure_engine(
    jobs: Sequence[Job], record: Record, file: HeadlineFile, console: Console
) -> dict[str, list[dict[str, Any]]]:
    """Run the jobs, which take turns; the figures of each process by workload.

    The file is written after each round of them all. Processes whose records are there already do
    not run.
    """
    figures: dict[str, list[dict[str, Any]]] = {job.workload: [] for job in jobs}
    processes = len(jobs) // len(figures)
    with Progress(console, "headline", len(jobs)) as progress:
        for job in jobs:
            progress.name(f"{job.workload} {job.process + 1}/{processes}")
            sentences: list[str] = []
            measured = kept_or_measured(job.record, partial(run_job, job), _check, sentences)
            for sentence in [*sentences, *throttle_warnings(job.label, measured["gpu_state"])]:
                console.print(sentence, soft_wrap=True)
                record.notes.append(sentence)
            figures[job.workload].append(child_figures(measured))
            record.samples.append({"workload": job.workload, "record": job.record.name})
            if all(len(one) == job.process + 1 for one in figures.values()):
                rows = [headline_row(one) for one in figures.values()]
                file.write(rows, f"{job.process + 1} of {processes} processes of the engine")
            progress.advance()
    return figures


def committed_target(facts: MachineFacts, *, standard: bool) -> Path:
    """The committed file, where this machine and this measurement may write it.

    Raises
    ------
    Refused
        If the figures would not be those that the file stands for.
    """
    if not facts.is_reference:
        raise Refused(
            f"{HEADLINE.relative_to(REPOSITORY)} holds figures of a reference machine "
            f"({', '.join(REFERENCE_MACHINES)}) and this one is {facts.name!r}; say where its own "
            f"figures go with --output."
        )
    if not standard:
        raise Refused(
            f"{HEADLINE.relative_to(REPOSITORY)} holds figures of {', '.join(HEADLINE_WORKLOADS)} "
            f"at full size with the built-in model; say where others go with --output."
        )
    return HEADLINE


def _check(measured: dict[str, Any]) -> None:
    throttle_warnings("", measured["gpu_state"])
    check_figures(child_figures(measured))


def run_job(job: Job, execute: Callable[..., Any] = subprocess.run) -> dict[str, Any]:
    """Run one job to its end and return its record.

    Raises
    ------
    MeasurementFailed
        If the process failed; the sentence ends with what it said.
    """
    done = execute(
        job.command(),
        cwd=REPOSITORY,
        env=measured_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise MeasurementFailed(
            f"{job.workload} failed in process {job.process + 1} with exit code "
            f"{done.returncode}:\n" + "\n".join(said)
        )
    record: dict[str, Any] = json.loads(job.record.read_text(encoding="utf-8"))
    return record
