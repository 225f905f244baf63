"""Run the processes that measure the engine on the named workloads."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.output.contradictions import processes_apart
from asv_bench.output.progress import Progress
from asv_bench.output.stored_json import positive, text
from asv_bench.process.kept_processes import kept_or_measured
from asv_bench.process.run_apart import last_words, run_apart

MODE = "online"
ROW_FIELDS = (
    "step_ms",
    "tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "itl_p99_ms",
    "floor_ms",
    "fraction_of_floor",
)
ENGINE = "kvtrail"


@dataclass(frozen=True, slots=True)
class Job:
    """One process: the engine on a workload. The path of its record ends its command."""

    workload: str
    process: int
    command: tuple[str, ...]

    @property
    def label(self) -> str:
        """How a sentence names the job."""
        return f"{self.workload}, process {self.process + 1}"

    def record(self, folder: Path) -> Path:
        """The record of its process, in the folder of a run."""
        return folder / f"{self.workload}-{self.process}.json"


def engine_jobs(workloads: Sequence[str], processes: int, arguments: Sequence[str]) -> list[Job]:
    """Jobs of the engine. Workloads take turns, so that the machine's drift affects all alike."""
    return [
        Job(name, process, ("asv_bench", "run", name, "--mode", MODE, *arguments, "--json"))
        for process in range(processes)
        for name in workloads
    ]


@dataclass(slots=True)
class Measured:
    """What processes measured, by workload, and notes for readers."""

    by_workload: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def processes(self) -> list[dict[str, Any]]:
        """What a record keeps of each process."""
        return list(chain.from_iterable(self.by_workload.values()))

    def rows(self) -> list[dict[str, Any]]:
        """Medians over processes, by workload."""
        return [headline_row([one["figures"] for one in row]) for row in self.by_workload.values()]


def measure_jobs(
    jobs: Sequence[Job],  # what to run
    folder: Path,  # where each process leaves its record, with every sample
    console: Console,  # shows progress and notes
    # Gets the result so far and the number of finished jobs after each round of workloads.
    on_round: Callable[[Measured, int], object] = lambda measured, ended: None,
) -> Measured:
    """Run jobs in order, except those whose record is in the folder already.

    Raises MeasurementFailed if a process failed.
    """
    measured = Measured()
    with Progress(console, "headline", len(jobs)) as progress:
        for ended, job in enumerate(jobs, start=1):
            progress.name(job.label)
            said = len(measured.notes)
            kept = _measured(job, folder, measured.notes)
            measured.by_workload.setdefault(job.workload, []).append(kept)
            for sentence in measured.notes[said:]:
                console.print(sentence)
            if ended == len(jobs) or jobs[ended].process != job.process:
                on_round(measured, ended)
            progress.advance()
    return measured


def run_job(job: Job, record: Path) -> dict[str, Any]:
    """Run one job to its end and return the record that it leaves.

    Raises MeasurementFailed if the process failed; the sentence ends with its last output.
    """
    done = run_apart([sys.executable, "-m", *job.command, str(record)])
    if done.returncode:
        raise MeasurementFailed(
            f"{job.label} could not be measured (exit code {done.returncode}). It said:\n"
            f"{last_words(done.stderr or done.stdout)}"
        )
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return content


def _measured(job: Job, folder: Path, notes: list[str]) -> dict[str, Any]:
    """Run a job unless it has run, and return what the record keeps of it."""
    path = job.record(folder)
    record = kept_or_measured(path, lambda: run_job(job, path), _check, notes)
    notes += throttle_warnings(job.label, record["gpu_state"])
    return {"record": path.name, "figures": child_figures(record)}


def _check(record: dict[str, Any]) -> None:
    check_figures(child_figures(record))
    throttle_warnings("", record["gpu_state"])


def throttle_warnings(label: str, gpu_state: Mapping[str, Any]) -> list[str]:
    """A sentence if the GPU was throttled; `gpu_state` is its state before and after a process."""
    return [
        f"{label}: the GPU was throttled {moment} the runs ({', '.join(state['clock_events'])})."
        for moment, state in gpu_state.items()
        if state is not None and state["throttled"]
    ]


def process_contradictions(processes: Iterable[Mapping[str, Any]]) -> list[str]:
    """What to know where processes of one workload gave steps far apart."""
    steps = ((f"the step of {figures['workload']}", figures["step_ms"]) for figures in processes)
    return processes_apart(steps, "ms")


def child_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """The headline figures of one process."""
    result = record["results"]["modes"][MODE]
    workload = record["settings"]["workload"]
    return {
        "workload": workload["name"],
        "engine": ENGINE,
        "batch": workload["batch_size"],
        "step_ms": result["step_ms"],
        "tokens_per_s": result["total_tokens_per_s"]["p50"],
        "ttft_ms": result["ttft_ms"]["p50"],
        "tpot_ms": result["tpot_ms"]["p50"],
        "itl_p99_ms": result["itl_ms"]["p99"],
        "floor_ms": result["floor_ms"],
        "fraction_of_floor": result["fraction_of_floor"],
    }


def check_figures(figures: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError unless a row can be made of these figures of a process."""
    text(figures["workload"])
    text(figures["engine"])
    positive(figures["batch"])
    for name in ROW_FIELDS:
        if figures[name] is not None:
            positive(figures[name])


def headline_row(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of `headline.json`: the median of each figure over the processes."""
    row: dict[str, Any] = {
        "workload": processes[0]["workload"],
        "engine": processes[0]["engine"],
        "batch": processes[0]["batch"],
    }
    for name in ROW_FIELDS:
        values = [figures[name] for figures in processes if figures[name] is not None]
        row[name] = statistics.median(values) if values else None
    return row
