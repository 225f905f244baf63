"""Peers of the engine on the named workloads, each in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from asv_bench.errors import MeasurementFailed
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, write_json
from asv_bench.peers.child import PeerTask
from asv_bench.peers.runs import PEERS, STATIC
from asv_bench.process.kept_processes import kept_or_measured
from asv_bench.process.threads import measured_environment
from asv_bench.run.headline_rows import (
    ENGINE,
    check_figures,
    headline_row,
    throttle_warnings,
)

PROCESSES = 2
STATIC_PROCESSES = 1
"""A process that compiles pays for it anew, so it makes its repeats itself."""
REPEATS = 3
LAST_LINES = 8
FACTS = ("task", "transformers", "dtype", "compiled", "warm_up_s", "figures")
"""What a record keeps of a process."""

# What torch.compile says where it lacks a compiler of its own.
_NO_COMPILER = ("InvalidCxxCompiler", "Failed to find C compiler", "No working C++ compiler")


@dataclass(frozen=True, slots=True)
class PeerJob:
    """One peer on one workload in one process."""

    task: PeerTask
    process: int

    @property
    def label(self) -> str:
        """How a sentence names the job."""
        return f"{self.task.peer} on {self.task.workload}, process {self.process + 1}"


@dataclass(slots=True)
class PeerOutcome:
    """Rows of the peers that could be measured, their processes' figures, and what to know."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def peer_jobs(
    workloads: Sequence[str],
    processes: int,
    *,
    model: str,
    device: str,
    quick: bool = False,
    dtype: str = "auto",
    repeats: int = REPEATS,
) -> list[PeerJob]:
    """Every peer on every workload; they take turns, so that drift falls on all alike.

    Peers that compile run in `STATIC_PROCESSES` processes, or fewer where fewer are asked for.
    """
    return [
        PeerJob(
            PeerTask(
                peer=peer,
                workload=name,
                quick=quick,
                model=model,
                device=device,
                dtype=dtype,
                repeats=repeats,
            ),
            process,
        )
        for process in range(processes)
        for name in workloads
        for peer in PEERS
        if peer != STATIC or process < STATIC_PROCESSES
    ]


def measure_peers(
    jobs: Sequence[PeerJob],
    folder: Path,
    console: Console,
    run_job: Callable[[PeerJob], dict[str, Any]] | None = None,
    on_rows: Callable[[list[dict[str, Any]]], object] | None = None,
) -> PeerOutcome:
    """Run the jobs; a peer that fails costs its own row, with a sentence, and no other's.

    Parameters
    ----------
    jobs
        In the order they run.
    folder
        Takes one JSON file a process, with every sample; a process whose file is there already
        does not run.
    console
        Shows progress and the sentences.
    run_job
        Runs one job and returns what its process printed; None: `run_peer_job`.
    on_rows
        Gets the rows as far as they go, after each job.
    """
    run_job = run_job or run_peer_job
    outcome = PeerOutcome()
    figures: dict[tuple[str, str], list[dict[str, Any]]] = {}
    failed: set[tuple[str, str]] = set()
    with Progress(console, "peers", len(jobs)) as progress:
        for job in jobs:
            key = (job.task.workload, job.task.peer)
            progress.name(f"{job.task.peer}, {job.task.workload}")
            sentences: list[str] = []
            if key not in failed:
                kept = folder / f"{'-'.join(key)}-{job.process}.json"
                try:
                    measured = kept_or_measured(kept, partial(run_job, job), _check, sentences)
                except MeasurementFailed as error:
                    failed.add(key)
                    sentences.append(str(error))
                else:
                    write_json(kept, measured)
                    figures.setdefault(key, []).append(measured["figures"])
                    outcome.processes.append({name: measured[name] for name in FACTS})
                    sentences += throttle_warnings(job.label, measured["gpu_state"])
                    if job.task.peer == STATIC and not measured["compiled"]:
                        sentences.append(
                            f"{job.label}: transformers compiles for its static cache on a GPU "
                            f"only, so this is the static cache alone."
                        )
            for sentence in sentences:
                console.print(sentence, soft_wrap=True)
                outcome.notes.append(sentence)
            outcome.rows = [headline_row(one) for key, one in figures.items() if key not in failed]
            if on_rows is not None:
                on_rows(outcome.rows)
            progress.advance()
    return outcome


def _check(measured: dict[str, Any]) -> None:
    check_figures(measured["figures"])
    throttle_warnings("", measured["gpu_state"])
    for name in FACTS:
        measured[name]


def run_peer_job(job: PeerJob, execute: Callable[..., Any] = subprocess.run) -> dict[str, Any]:
    """Run one job to its end and return what its process printed.

    Raises
    ------
    MeasurementFailed
        If the process failed; the sentence ends with what it said. A compiler that inductor needs
        and the machine lacks is named in it.
    """
    command = [sys.executable, "-m", "asv_bench.peers.child", job.task.to_argument()]
    done = execute(
        command,
        cwd=REPOSITORY,
        env=measured_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-LAST_LINES:]
        compiler = (
            " torch.compile found no working C or C++ compiler on this machine."
            if any(sign in done.stderr for sign in _NO_COMPILER)
            else ""
        )
        raise MeasurementFailed(
            f"{job.label} could not be measured (exit code {done.returncode}).{compiler} It "
            f"said:\n" + "\n".join(said)
        )
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def merged_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by workload, in the order in which each first occurs, the engine's before its peers'."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    engines = [ENGINE, *PEERS]
    return sorted(
        rows, key=lambda row: (workloads.index(row["workload"]), engines.index(row["engine"]))
    )
