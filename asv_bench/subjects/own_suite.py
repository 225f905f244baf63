"""kvtrail itself as the subject: its benchmarks, or runs of its engine, in commits of it.

Nothing is installed. For benchmarks, which asv's runner starts, engine and kernels of a commit are
laid out once, by its hash. A run is `run WORKLOAD` by today's ruler in the files of the commit.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from asv_bench.errors import Refused, require_packages
from asv_bench.git.repository import Commit, GitError
from asv_bench.git.trees import lay_out, working_tree
from asv_bench.history.asv_selection import STANDARD, Entry, entries_of, select
from asv_bench.measure.figures import Figures
from asv_bench.measure.life import Life, Setting
from asv_bench.measure.lives import repeats_for
from asv_bench.measure.places import CPU, shared_out
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.samples import Absence, CommitUnusable, Metric
from asv_bench.measure.trees import Laid
from asv_bench.measure.turns import TURNS_VARIABLE
from asv_bench.output.record import require_writable
from asv_bench.process import environment
from asv_bench.process.environment import MEASURED_PACKAGES, borrowed_paths, search_path
from asv_bench.process.gpu import ALL_DEVICES, chosen_gpus
from asv_bench.process.machine import chosen_device, has_cuda_gpu
from asv_bench.run.settings import RULER, EngineWorkload
from asv_bench.subjects.axis import Commits
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.metrics import CheckTable, MetricTable
from asv_bench.subjects.subject_file import SUBJECT, SubjectTable, SubjectText
from asv_bench.words import counted, first_of
from asv_bench.workloads.named import WORKLOADS

BENCHMARKS = Path("asv_bench", "benchmarks")
KEPT = Path(".asv", "verdicts")
"""Where a checkout keeps what it measures: `commits/HASH/engine` and `commits/HASH/kernels`."""
ENGINE_NEEDS = (
    "numpy.random",
    "numpy.typing",
    "torch",
    "triton.experimental.gluon",
    "triton.runtime.cache:triton_key",
)
"""What every life of the engine imports. Triton hashes its own files in `triton_key`."""
PRELOAD = (*ENGINE_NEEDS, "asv_runner.discovery", "asv_runner.benchmarks")
TIMEOUT_SECONDS = 900.0
_SCRIPT = Path(__file__).with_name("own_life.py")
_METRICS = {
    "step_ms": MetricTable("results.runs.step_ms", unit="ms"),
    "tpot_ms": MetricTable("results.runs.tpot_ms", unit="ms"),
    "ttft_ms": MetricTable("results.runs.ttft_ms", unit="ms"),
    "tokens_per_s": MetricTable("results.runs.tokens_per_s", unit="tokens/s", better="higher"),
}


class EngineSubject(DeclaredSubject):
    """Commits of kvtrail, of which engine and kernels are measured, in the ruler's own Python."""

    lists_packages = False
    pathspecs = MEASURED_PACKAGES

    def are_same(self, base: str, head: str) -> bool:
        """Whether engine and kernels are the same; False if there are none at all."""
        before, after = (
            one.repository.ask("ls-tree", "-z", "--full-tree", one.commit, "--", *MEASURED_PACKAGES)
            for one in (self.axis.variant(base), self.axis.variant(head))
        )
        return bool(before) and before == after

    def engines(self, commits: Sequence[str]) -> dict[str, Path]:
        return {commit: engine_of(self, commit) for commit in commits}


class OwnSuite(EngineSubject):
    """The benchmarks of the checkout at `root`, whose ruler measures, in commits of it.

    Without patterns the step time of the workload `scheduler` is compared.
    """

    is_portable = False
    stored = STANDARD.any_of()

    def __init__(self, root: Path) -> None:
        # Said before anything is measured: its commits lie on the search path of processes.
        search_path([str(root / KEPT)])
        threads = environment.THREADS_VARIABLE
        variables = {
            threads: environment.measured_environment()[threads],
            "PYTHONPATH": search_path(["$KVTRAIL_TREE", *borrowed_paths()]),
        }
        super().__init__(root, SubjectText(SubjectTable("kvtrail", measure="true", env=variables)))
        self.kept_in = root
        self._places = shared_out((CPU,))
        self._descriptions: list[dict[str, Any]] = []
        # Of the chosen benchmarks, as asv's runner wants them, by name.
        self._identifiers: dict[str, str] = {}

    def _axis_of(self, kind: str, text: SubjectText) -> Commits:
        return Commits(self.repository, self._folder, MEASURED_PACKAGES)

    def all_entries(self) -> list[Entry]:
        """Every benchmark with its parameters, also those for other machines."""
        require_packages("asv_runner")
        folder = self._folder()
        nothing = Laid(folder, folder, folder, "").environment(self._text.subject)
        words = (sys.executable, "-P", str(_SCRIPT), "list", str(self.repository / BENCHMARKS))
        self._descriptions = Processes().answer(Job(words, folder, nothing), TIMEOUT_SECONDS)
        return entries_of(self._descriptions)

    def choose(self, patterns: Sequence[str], devices: str | None) -> None:
        """Choose benchmarks: `patterns` are looked for in names with parameters.

        Raises Refused where there is no such benchmark or device, and LifeFailed where the
        benchmarks cannot be imported.
        """
        require_packages("asv_runner", "torch", "msgspec")
        chosen = devices_named(devices)
        self._places = shared_out(chosen)
        require_writable(self.repository / KEPT / "commit")
        wanted = patterns or (r"^scheduler\.Scheduler\.track_step_time",)
        found = select(self.all_entries(), wanted, has_gpu=chosen != (CPU,))
        self.metrics = [Metric(entry.name, entry.unit) for entry in found]
        self._identifiers = {entry.name: entry.identifier for entry in found}

    def decoded(self, metric: str) -> EngineWorkload:
        """See `DeclaredSubject`: modules of benchmarks are called as workloads are."""
        module = metric.partition(".")[0]
        return EngineWorkload(module if module in WORKLOADS else "scheduler")

    def described(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self._descriptions}

    def described_as(self, metric: str) -> tuple[str, int]:
        name, _, number = self._identifiers[metric].partition("-")
        return name, int(number or 0)

    def version(self, metric: str) -> str:
        name, _ = self.described_as(metric)
        return str(self.described()[name]["version"])

    def in_range(self, text: str) -> list[Commit]:
        """The commits of a range, in their order.

        Raises Refused where the range is unknown or empty, or the checkout has uncommitted changes
        that bear on figures: benchmarks are those of today.
        """
        tree = working_tree(self.repository)
        if tree.commit is None:
            raise Refused(
                f"{self.repository} is not a git repository with commits; history measures "
                f"commits. bench measures the working tree as it stands."
            )
        if changes := tree.measured_changes:
            raise Refused(
                f"there are uncommitted changes in {first_of(changes, 5)}. history measures "
                f"commits, and with today's benchmarks: commit or stash them first. bench measures "
                f"them as they stand."
            )
        return super().in_range(text)

    def _laying(self, processes: Processes) -> Callable[[str], tuple[Laid, ...]]:
        def lay_out(name: str) -> tuple[Laid, ...]:
            variant = self.axis.variant(name)
            folder = engine_of(self, variant.commit)
            return (Laid(folder, folder, folder, variant.label, variant.delay),)

        return lay_out

    def _life(self) -> Life:
        suite, is_on_gpu = self.repository / BENCHMARKS, self.devices != [CPU]
        return BenchmarkLife(suite, self._identifiers, self.is_compared, is_on_gpu)

    def sentence(self) -> str:
        names = [metric.name for metric in self.metrics]
        where = "the CPU" if self.devices == [CPU] else f"GPU {', '.join(self.devices)}"
        threads = counted(environment.measured_threads(), "thread")
        return f"measuring {first_of(names, 4)} on {where}, {threads} a process"

    def to_json(self) -> dict[str, Any]:
        return {"kind": "kvtrail"}


class EngineRuns(EngineSubject):
    """Runs of the engine that a commit of kvtrail has; `root` is the checkout."""

    def __init__(self, root: Path, workload: EngineWorkload) -> None:
        self.workload = workload
        paths = search_path(["$KVTRAIL_TREE", *borrowed_paths()])
        table = SubjectTable(
            name=workload.name,
            measure=workload.line(),
            devices=workload.tensor_parallel_size or 1 if has_cuda_gpu() else None,
            # Lives of a commit share its folder, and what is compiled there.
            env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
            | {SUBJECT: str(root)},
            pinned=(RULER,),
            preload=(*ENGINE_NEEDS, "msgspec", "typer", "rich.console", "rich.table"),
        )
        is_exact = not (has_cuda_gpu() or workload.quantization or workload.kv_cache_dtype)
        is_exact &= workload.dtype in (None, "auto", "float32")
        checks = {"tokens": CheckTable("results.runs.tokens")} if is_exact else _likelihoods()
        super().__init__(root, SubjectText(table, metrics=_METRICS, check=checks))
        # Without patterns the step time alone is compared.
        self.metrics = self.known[:1]

    def decoded(self, metric: str) -> EngineWorkload:
        ran, device = self.workload, chosen_device("auto")
        engine = ran.engine(ran.named, device, is_quick=device == CPU)
        del engine["device"]
        return replace(ran, **engine)


def _likelihoods() -> dict[str, CheckTable]:
    """Checks in half precision, where close scores go either way, whatever computes them."""
    line = f"{shlex.quote(sys.executable)} -P -m asv_bench.peers.model score"
    table = partial(CheckTable, "results.ids", must="not-worse", score=line)
    # Between two ways to round, largest gaps of thousands of tokens differ by about one.
    return {"argmax": table(tolerance=0.05), "largest_gap": table(better="lower", tolerance=3.0)}


@dataclass
class BenchmarkLife(Life):
    """Benchmarks of kvtrail's own suite, by asv's runner in one process.

    The figures of one run of the engine are taken from that run, those of different runs in
    different lives: the first life of a commit shows which share a run. On a CPU a short run is
    repeated, of which the least figure counts.
    """

    suite: Path
    identifiers: Mapping[str, str]  # the benchmarks' names in asv's runner, by name
    is_compared: bool
    """Whether figures are compared: then only positive ones count, and short runs are repeated."""
    is_on_gpu: bool
    _runs: dict[str, str] = field(default_factory=dict)
    _repeats: dict[str, int] = field(default_factory=dict)
    _in_turns: set[str] = field(default_factory=set)

    def groups(self, metrics: Collection[str]) -> list[tuple[str, ...]]:
        """The figures by the run that they share."""
        groups: dict[str, list[str]] = {}
        for name in metrics:
            groups.setdefault(self._runs[name], []).append(name)
        return [tuple(names) for names in groups.values()]

    def takes_turns(self, metrics: Collection[str]) -> bool:
        """Whether their runs say what each of their windows took, on a CPU."""
        return not self.is_on_gpu and any(self._runs[name] in self._in_turns for name in metrics)

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        is_trial = environment.TRIAL_VARIABLE in setting.variables
        is_once = is_trial or TURNS_VARIABLE in setting.variables
        repeats = 1 if is_once else self._repeats.get(self._runs[next(iter(metrics))], 1)
        wanted = {self.identifiers[name]: name for name in metrics}
        words = (sys.executable, "-P", str(_SCRIPT), "run", str(self.suite), str(repeats), *wanted)
        job = Job(words, Path(gettempdir()), setting.variables, setting.cores, PRELOAD)
        answer = setting.processes.answer(job, TIMEOUT_SECONDS)
        if answer is None:
            raise LifeFailed("it ended without an answer.")
        figures = Figures(span=answer["span"])
        seconds: dict[str, float] = {}
        for outcome in answer["outcomes"]:
            name, samples = wanted[outcome["name"]], outcome["samples"]
            if absence := outcome["absence"]:
                figures.absences[name] = Absence(*absence)
                continue
            if is_trial:
                run = self._runs.setdefault(name, outcome["run"] or name)
                seconds[run] = seconds.get(run, 0.0) + outcome["seconds"]
                self._in_turns |= {run} if outcome["windows"] else set()
            if self.is_compared and min(samples) <= 0:
                reason = f"it gave {min(samples):g}, and only positive figures have a ratio"
                figures.absences[name] = Absence(reason, has_failed=False)
                continue
            windows = outcome["windows"] or samples
            figures.values[name] = (*figures.values.get(name, ()), *windows)
            # What else runs on the machine only ever adds time.
            figures.taken[name] = min(*samples, figures.taken.get(name, samples[0]))
        for name in figures.absences:
            figures.values.pop(name, None)
        if self.is_compared and not self.is_on_gpu:
            for run, spent in seconds.items():
                # Settled by the first commit and kept: both halves of a pair are measured alike.
                self._repeats.setdefault(run, repeats_for(spent))
        return figures


def engine_of(subject: DeclaredSubject, commit: str) -> Path:
    """The folder with engine and kernels as lives of a subject run them; it is made on first use.

    Raises CommitUnusable where the commit has none of them, or git does not have the commit.
    """
    variant, place = subject.axis.variant(commit), subject.repository / KEPT / "commits"
    try:
        directory = lay_out(variant.commit, variant.repository, place)
    except GitError as error:
        raise CommitUnusable(variant.commit, f"git could not unpack it: {error}") from None
    if not any(os.path.lexists(directory / package) for package in MEASURED_PACKAGES):
        lacking = f"it has none of {', '.join(MEASURED_PACKAGES)}."
        raise CommitUnusable(variant.commit, lacking, is_lacking=True)
    return directory


def devices_named(devices: str | None) -> tuple[str, ...]:
    """The devices to measure on: UUIDs of GPUs, or "cpu" where there is none.

    `devices` is as in `chosen_gpus`, which refuses those that there are not.
    """
    if has_cuda_gpu():
        return chosen_gpus(devices)
    if devices in (None, CPU, ALL_DEVICES):
        return (CPU,)
    raise Refused(f"--devices {devices} names GPUs, and there is none here that torch can use.")
