"""kvtrail's own benchmarks as the subject: asv's runner, on the engine and kernels of each commit.

Nothing is installed: what is measured of a commit is laid out once, by its hash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from asv_bench.compare.catalog import Entry, entries_of, select
from asv_bench.errors import Refused
from asv_bench.git.commit_tree import REMARKS, lay_out, packages_of
from asv_bench.git.repository import Commit, GitError
from asv_bench.git.working_tree import WorkingTree, working_tree
from asv_bench.output.console import make_console, print_sentences
from asv_bench.output.destinations import require_writable
from asv_bench.packages import require_packages
from asv_bench.process.borrowed_paths import search_path
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.gpu import ALL_DEVICES, chosen_gpus
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.measured_process import CPU, ProcessRunner
from asv_bench.process.process_pairs import ProcessPairs
from asv_bench.process.samples import CommitUnusable
from asv_bench.process.threads import measured_threads, threads_text
from asv_bench.subjects.axis import Axis, Commits, Variant
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.rounds import RoundSource
from asv_bench.subjects.subject import Metric
from asv_bench.subjects.subject_file import SubjectTable, SubjectText

DEFAULT_BENCHMARKS = (r"^scheduler\.Scheduler\.track_step_time",)
"""The figure that this project is about."""
BENCHMARKS = Path("asv_bench", "benchmarks")
_SHOWN = 4


class OwnSuite(DeclaredSubject):
    """The benchmarks of the checkout at `root`, whose ruler measures, in commits of it.

    Without patterns the step time of the workload `scheduler` is compared.

    Attributes
    ----------
    entries
        The chosen benchmarks.
    """

    is_portable = False
    is_own = True
    has_engine = True
    pathspecs = MEASURED_PACKAGES
    entries: tuple[Entry, ...] = ()

    def __init__(self, root: Path) -> None:
        super().__init__(root, SubjectText(SubjectTable(name="kvtrail", measure="true")))
        self._environment = environment_of(root)
        # Said before anything is measured: its commits lie on the search path of processes.
        search_path([str(self._environment)])
        self._runner = ProcessRunner(root / BENCHMARKS, self._environment)
        self._own_devices: tuple[str, ...] = (CPU,)
        self._descriptions: list[dict[str, Any]] = []

    def _axis_of(self, kind: str, labels: Sequence[str]) -> Axis:
        return Commits(self.repository, self._folder, MEASURED_PACKAGES)

    def all_entries(self) -> list[Entry]:
        """Every benchmark with its parameters, also those for other machines."""
        require_packages("asv_runner")
        self._descriptions = self._runner.discover()
        return entries_of(self._descriptions)

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """See `DeclaredSubject`: `patterns` are looked for in names with parameters.

        Raises
        ------
        Refused
            If there is no such benchmark or device.
        ProcessFailed
            If the benchmarks cannot be imported.
        """
        require_packages("asv_runner", "torch", "msgspec")
        self._own_devices = devices_named(devices)
        require_writable(self._environment / "commit")
        has_gpu = self._own_devices != (CPU,)
        wanted = patterns or DEFAULT_BENCHMARKS
        self.entries = tuple(select(self.all_entries(), wanted, has_gpu=has_gpu))

    @property
    def known(self) -> list[Metric]:
        """See `DeclaredSubject`: the chosen benchmarks."""
        return list(self.metrics)

    @property
    def metrics(self) -> Sequence[Metric]:
        """See `Subject`: the chosen benchmarks."""
        return [Metric(entry.name, entry.unit) for entry in self.entries]

    @property
    def fixed(self) -> str:
        """See `Subject`: commits have files of their own."""
        return ""

    @property
    def devices(self) -> Sequence[str]:
        """See `Subject`."""
        return self._own_devices

    @property
    def models(self) -> Sequence[str]:
        """See `DeclaredSubject`: names of benchmarks say of which model they are."""
        return [entry.name for entry in self.entries]

    def described(self) -> dict[str, dict[str, Any]]:
        """See `DeclaredSubject`: all benchmarks, as asv describes them."""
        return {one["name"]: one for one in self._descriptions}

    def described_as(self, metric: str) -> tuple[str, int]:
        """See `DeclaredSubject`."""
        identifier = next(one.identifier for one in self.entries if one.name == metric)
        name, _, number = identifier.partition("-")
        return name, int(number or 0)

    def version(self, metric: str) -> str:
        """See `DeclaredSubject`: what asv makes of the benchmark's code."""
        name, _ = self.described_as(metric)
        return str(self.described()[name]["version"])

    def in_range(self, text: str) -> list[Commit]:
        """See `DeclaredSubject`.

        Raises
        ------
        Refused
            If the range is unknown or empty, or the checkout has uncommitted changes that bear on
            figures: benchmarks are those of today.
        """
        refuse_unfit(working_tree(self.repository), self.repository)
        return super().in_range(text)

    def are_same(self, base: str, head: str) -> bool:
        """See `Subject`: whether engine and kernels are the same."""
        return same_engine(self.variant(base), self.variant(head))

    def folder_of(self, commit: str) -> Path:
        """The folder with the measured packages of a commit, given by its full hash.

        Raises CommitUnusable as `laid_out` does.
        """
        return self._lay_out(self.variant(commit))

    def _lay_out(self, variant: Variant) -> Path:
        directory = laid_out(variant, self._environment)
        if (directory / REMARKS).is_file():
            remarks = os.fsdecode((directory / REMARKS).read_bytes()).split("\0")
            new = [remark for remark in remarks if remark not in self.remarks]
            self.remarks += new
            print_sentences(make_console(stderr=True), new)
        return directory

    @contextmanager
    def pairs_of(self, variant_of: Callable[[str], Variant]) -> Iterator[RoundSource]:
        """See `DeclaredSubject`."""
        with self._pairs_for(variant_of, [entry.name for entry in self.entries]) as source:
            yield source

    @contextmanager
    def lives(self) -> Iterator[RoundSource]:
        """See `DeclaredSubject`: a process takes a figure once, which may be 0, as asv does."""
        names = [entry.name for entry in self.entries]
        with self._pairs_for(self.variant, names, is_compared=False) as source:
            yield source

    @contextmanager
    def sources(self) -> Iterator[Callable[[Sequence[str]], AbstractContextManager[RoundSource]]]:
        """See `DeclaredSubject`: only those benchmarks are tried that are asked for."""
        yield lambda benchmarks: self._pairs_for(self.variant, benchmarks)

    def _pairs_for(
        self,
        variant_of: Callable[[str], Variant],
        benchmarks: Sequence[str],
        *,
        is_compared: bool = True,
    ) -> ProcessPairs:
        known = {entry.name: entry.identifier for entry in self.entries}
        return ProcessPairs(
            lambda name: self._lay_out(variant_of(name)),
            ProcessRunner(self.repository / BENCHMARKS, self._environment),
            {name: known[name] for name in benchmarks},
            self.devices,
            is_compared=is_compared,
        )

    def sentence(self) -> str:
        """See `Subject`."""
        names = [entry.name for entry in self.entries]
        listed = ", ".join(names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
        where = "the CPU" if self.devices == (CPU,) else f"GPU {', '.join(self.devices)}"
        threads = threads_text(measured_threads())
        return f"measuring {listed}{more} on {where}, {threads} a process"

    def to_json(self) -> dict[str, Any]:
        """See `Subject`."""
        return {"kind": "kvtrail"}


def refuse_unfit(tree: WorkingTree, repository: Path) -> None:
    """Raise Refused unless the repository can give an honest history."""
    if tree.commit is None:
        raise Refused(
            f"{repository} is not a git repository with commits; history measures commits. "
            f"bench measures the working tree as it stands."
        )
    changes = tree.measured_changes
    if changes:
        shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if changes[5:] else "")
        raise Refused(
            f"there are uncommitted changes in {shown}. history measures commits, and with today's "
            f"benchmarks: commit or stash them first. bench measures them as they stand."
        )


def environment_of(root: Path) -> Path:
    """Where a checkout keeps what it measures: `commits/HASH/engine` and `commits/HASH/kernels`."""
    return root / ".asv" / "verdicts"


def laid_out(variant: Variant, environment: Path) -> Path:
    """The folder with the measured packages of a commit; it is made on first use.

    Raises
    ------
    CommitUnusable
        If the commit has none of them, or git does not have the commit.
    """
    try:
        directory = lay_out(variant.commit, variant.repository, environment / "commits")
    except GitError as error:
        raise CommitUnusable(variant.commit, f"git could not unpack it: {error}") from None
    if not any(os.path.lexists(directory / package) for package in MEASURED_PACKAGES):
        lacking = f"it has none of {', '.join(MEASURED_PACKAGES)}."
        raise CommitUnusable(variant.commit, lacking, is_lacking=True)
    return directory


def engine_of(subject: DeclaredSubject, commit: str) -> Path:
    """The engine that lives of a subject run at a commit, as `laid_out` has it."""
    return laid_out(subject.variant(commit), environment_of(subject.repository))


def same_engine(base: Variant, head: Variant) -> bool:
    """Whether two commits have the same measured packages; False if they have none at all."""
    packages = packages_of(base.commit, base.repository)
    return bool(packages) and packages == packages_of(head.commit, head.repository)


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
