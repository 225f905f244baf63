"""Processes that measure the named workloads, by the engine or by a peer, and their figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.output.progress import Progress
from asv_bench.peers.child import PeerTask
from asv_bench.peers.runs import PEERS, STATIC
from asv_bench.process.kept_processes import kept_or_measured
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.headline_rows import (
    ENGINE,
    MODE,
    check_figures,
    child_figures,
    headline_row,
    throttle_warnings,
)

STATIC_PROCESSES = 1
"""A process that compiles pays for it anew, so it makes its repeats itself."""
PEER_FACTS = ("task", "transformers", "dtype", "compiled", "warm_up_s")
"""What a record keeps of a peer's process, beside its figures."""

# What torch.compile says where it lacks a compiler of its own.
_NO_COMPILER = ("InvalidCxxCompiler", "Failed to find C compiler", "No working C++ compiler")


@dataclass(frozen=True, slots=True)
class Job:
    """One workload by one engine in one process, whose command takes the path of its record."""

    workload: str
    engine: str
    process: int
    command: tuple[str, ...]

    @property
    def label(self) -> str:
        """How a sentence names the job."""
        return f"{self.engine} on {self.workload}, process {self.process + 1}"

    @property
    def row(self) -> tuple[str, str]:
        """The row that its figures go to."""
        return self.workload, self.engine

    def record(self, folder: Path) -> Path:
        """Where its process leaves its record in the folder of a run."""
        return folder / f"{self.workload}-{self.engine}-{self.process}.json"


def engine_jobs(workloads: Sequence[str], processes: int, arguments: Sequence[str]) -> list[Job]:
    """The engine on every workload; they take turns, so that drift falls on all alike."""
    return [
        Job(name, ENGINE, process, ("asv_bench", "run", name, "--mode", MODE, *arguments, "--json"))
        for process in range(processes)
        for name in workloads
    ]


def peer_jobs(workloads: Sequence[str], processes: int, **task: Any) -> list[Job]:
    """Every peer on every workload; they take turns, too.

    Parameters
    ----------
    workloads, processes
        Peers that compile run in `STATIC_PROCESSES` processes, or fewer where fewer are asked for.
    **task
        The other fields of `PeerTask`.
    """
    jobs = []
    for process in range(processes):
        for name in workloads:
            for peer in PEERS:
                if peer != STATIC or process < STATIC_PROCESSES:
                    argument = PeerTask(peer=peer, workload=name, **task).to_argument()
                    command = ("asv_bench.peers.child", argument)
                    jobs.append(Job(name, peer, process, command))
    return jobs


@dataclass(slots=True)
class Measured:
    """What processes measured, by workload and engine, and what to know about it."""

    by_row: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def processes(self) -> list[dict[str, Any]]:
        """What a record keeps of each process."""
        return list(chain.from_iterable(self.by_row.values()))

    def rows(self) -> list[dict[str, Any]]:
        """Medians over processes, by workload, the engine's before its peers'."""
        workloads = list(dict.fromkeys(workload for workload, _ in self.by_row))
        engines = (ENGINE, *PEERS)
        rows = sorted(self.by_row, key=lambda row: (workloads.index(row[0]), engines.index(row[1])))
        return [headline_row([one["figures"] for one in self.by_row[row]]) for row in rows]


def measure_jobs(
    jobs: Sequence[Job],
    folder: Path,
    console: Console,
    on_round: Callable[[Measured, int], object] = lambda measured, ended: None,
) -> Measured:
    """Run the jobs; those whose record is in the folder already do not run again.

    Parameters
    ----------
    jobs
        In the order they run.
    folder
        Takes a JSON file a process, with every sample.
    console
        Shows progress, and sentences about what was measured.
    on_round
        Gets what is measured so far, and how many jobs have ended, whenever all workloads have been
        measured as often.

    Raises
    ------
    MeasurementFailed
        If a process of the engine failed. A peer's costs the peer its row, and no other's.
    """
    measured = Measured()
    failed: set[tuple[str, str]] = set()
    with Progress(console, "headline", len(jobs)) as progress:
        for ended, job in enumerate(jobs, start=1):
            progress.name(job.label)
            said = len(measured.notes)
            if job.row not in failed:
                try:
                    kept = _measured(job, folder, measured.notes)
                except MeasurementFailed as error:
                    if job.engine == ENGINE:
                        raise
                    failed.add(job.row)
                    measured.by_row.pop(job.row, None)
                    measured.notes.append(str(error))
                else:
                    measured.by_row.setdefault(job.row, []).append(kept)
            for sentence in measured.notes[said:]:
                console.print(sentence)
            if ended == len(jobs) or jobs[ended].process != job.process:
                on_round(measured, ended)
            progress.advance()
    return measured


def run_job(job: Job, record: Path) -> dict[str, Any]:
    """Run one job to its end and return the record that it leaves.

    Raises
    ------
    MeasurementFailed
        If the process failed; the sentence ends with what it said. A compiler that inductor needs
        and the machine lacks is named in it.
    """
    done = run_apart([sys.executable, "-m", *job.command, str(record)])
    if done.returncode:
        compiler = (
            " torch.compile found no working C or C++ compiler on this machine."
            if any(sign in done.stderr for sign in _NO_COMPILER)
            else ""
        )
        raise MeasurementFailed(
            f"{job.label} could not be measured (exit code {done.returncode}).{compiler} It "
            f"said:\n{last_words(done.stderr or done.stdout)}"
        )
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return content


def _measured(job: Job, folder: Path, notes: list[str]) -> dict[str, Any]:
    """What a record keeps of a job's process, which runs if it has not."""
    path = job.record(folder)
    record = kept_or_measured(path, lambda: run_job(job, path), _check, notes)
    notes += throttle_warnings(job.label, record["gpu_state"])
    if job.engine == STATIC and not record["compiled"]:
        notes.append(
            f"{job.label}: transformers compiles for its static cache on a GPU only, so this is "
            f"the static cache alone."
        )
    facts = {} if job.engine == ENGINE else {name: record[name] for name in PEER_FACTS}
    return {"record": path.name, **facts, "figures": _figures(record)}


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row that a process left in its record."""
    figures: dict[str, Any] = record.get("figures") or child_figures(record)
    return figures


def _check(record: dict[str, Any]) -> None:
    check_figures(_figures(record))
    throttle_warnings("", record["gpu_state"])
    if "figures" in record:
        for name in PEER_FACTS:
            record[name]
