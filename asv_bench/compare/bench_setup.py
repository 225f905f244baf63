"""What a comparing command needs before its first process: commits, benchmarks and devices."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from asv_bench.compare.catalog import Entry, entries_of, select
from asv_bench.errors import Refused
from asv_bench.git.commit_sources import CommitSources
from asv_bench.git.commits import commits_between
from asv_bench.git.repository import Commit, Repository
from asv_bench.output.destinations import require_writable
from asv_bench.packages import require_packages
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.gpu import ALL_DEVICES, chosen_gpus
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.measured_process import CPU, ProcessRunner
from asv_bench.process.process_pairs import ProcessPairs
from asv_bench.process.threads import measured_threads, threads_text
from asv_bench.subjects.subject import Metric

DEFAULT_BENCHMARKS = (r"^scheduler\.Scheduler\.track_step_time",)
"""The figure that this project is about."""
BENCHMARKS = Path("asv_bench", "benchmarks")


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """What is measured, where, and how commits get there; `folder` holds asv's benchmarks."""

    sources: CommitSources
    folder: Path
    entries: tuple[Entry, ...]
    devices: tuple[str, ...]

    name = "kvtrail"
    fixed = ""
    pathspecs = MEASURED_PACKAGES

    @property
    def benchmarks(self) -> list[str]:
        """The selected benchmarks' names with parameters."""
        return [entry.name for entry in self.entries]

    @property
    def metrics(self) -> list[Metric]:
        """See `Subject`."""
        return [Metric(entry.name, entry.unit) for entry in self.entries]

    @property
    def remarks(self) -> list[str]:
        """See `Subject`."""
        return self.sources.remarks

    def resolve(self, revision: str) -> Commit:
        """See `Subject`."""
        return self.sources.resolve(revision)

    def repository_of(self, commit: str) -> Repository:
        """Where the files of a commit are."""
        return self.sources.repository_of(commit)

    def are_same(self, base: str, head: str) -> bool:
        """See `Subject`: whether engine and kernels are the same."""
        return self.sources.are_same(base, head)

    def add(self, commit: str, repository: Repository) -> None:
        """Know a commit, given by its full hash, that lies in another repository."""
        self.sources.add(commit, repository)

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Subject`: on one line of first parents."""
        return commits_between(base, head, Repository(self.sources.root))

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {"kind": "kvtrail"}

    def pairs(self) -> ProcessPairs:
        """A source of pairs of processes; leaving it as a context ends them."""
        return self.pairs_of(self.benchmarks)

    def pairs_of(self, benchmarks: Sequence[str]) -> ProcessPairs:
        """The same for some of the selected benchmarks."""
        identifiers = {entry.name: entry.identifier for entry in self.entries}
        return ProcessPairs(
            self.sources,
            ProcessRunner(self.folder, self.sources.environment),
            {name: identifiers[name] for name in benchmarks},
            self.devices,
        )

    def sentence(self, shown: int = 4) -> str:
        """What was selected, for the user to check."""
        names = self.benchmarks
        listed = ", ".join(names[:shown])
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        where = "the CPU" if self.devices == (CPU,) else f"GPU {', '.join(self.devices)}"
        threads = threads_text(measured_threads())
        return f"measuring {listed}{more} on {where}, {threads} a process"


def set_up(root: Path, patterns: Sequence[str], devices: str | None) -> BenchSetup:
    """Find the benchmarks and devices that were asked for.

    Parameters
    ----------
    root
        The checkout whose ruler measures and whose repository has the commits.
    patterns
        Regular expressions; none: step time of the workload `scheduler`.
    devices
        As in `devices_named`.

    Raises
    ------
    Refused
        If there is no such benchmark or device, or commits cannot be laid out.
    ProcessFailed
        If the benchmarks cannot be imported.
    """
    require_packages("asv_runner", "torch", "msgspec")
    chosen = devices_named(devices)
    sources = CommitSources(root)
    require_writable(sources.environment / "commit")
    folder = root / BENCHMARKS
    entries = select(all_entries(root), patterns or DEFAULT_BENCHMARKS, has_gpu=chosen != (CPU,))
    return BenchSetup(sources, folder, tuple(entries), chosen)


def all_entries(root: Path) -> list[Entry]:
    """Every benchmark of a checkout with its parameters, also those for other machines."""
    require_packages("asv_runner")
    runner = ProcessRunner(root / BENCHMARKS, CommitSources(root).environment)
    return entries_of(runner.discover())


def devices_named(devices: str | None) -> tuple[str, ...]:
    """The devices to measure on: UUIDs of GPUs, or "cpu" where there is none.

    Parameters
    ----------
    devices
        As in `chosen_gpus`, by which they are refused if there are no such devices.
    """
    if has_cuda_gpu():
        return chosen_gpus(devices)
    if devices in (None, CPU, ALL_DEVICES):
        return (CPU,)
    raise Refused(f"--devices {devices} names GPUs, and there is none here that torch can use.")


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM, which a job's scheduler sends, into the KeyboardInterrupt of Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
