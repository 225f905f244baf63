"""The verb that says why one end is slower than the other, and a few lines of it for a verdict."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.compare.verdict import Verdict
from asv_bench.errors import BenchError, MeasurementFailed, TimeIsUp
from asv_bench.explain.clue import Source, cell_clues
from asv_bench.explain.engine_counts import CPU_PATHS, GPU_PATHS, MODEL, count_ends, stand_in
from asv_bench.explain.explanation import Effect, Explanation, files_between
from asv_bench.explain.trace import TraceSummary, Window, WorkTime, read_traces, torch_trace
from asv_bench.explain.trace_pair import Trace, TracePair
from asv_bench.git.repository import Commit
from asv_bench.measure.figures import Figures
from asv_bench.measure.life import CommandLife, Life, Setting
from asv_bench.measure.lives import TRACE, Lives
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.issue_text import described, lasting_names
from asv_bench.output.markdown import inline
from asv_bench.output.redaction import words_without_secrets
from asv_bench.output.stored_json import Count, UnreadableFile, read_stored
from asv_bench.process.gpu import NO_GPU
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.session.time_limit import ending_in_time
from asv_bench.subjects.declared import DeclaredSubject

STEPS = 32
"""Decode steps in a trace of kvtrail's own engine."""
_COUNTED, _CHEAP_S = 2, 3.0
"""Causes that a verdict is told, and seconds of the longest lives that are profiled for it."""
_SMALL = {"random:llama": "random:llama-tiny", "random:qwen": "random:qwen3-tiny"}
_HOOK = Path(__file__).with_name("python_hook.py")
_PYTHONPATH = re.compile(r"\bPYTHONPATH=")
_NO_TRACE = "No trace was taken, as the subject declares none: [trace] run in kvtrail.toml."


class Explaining(Judging):
    """One explanation from its first look, from the cheap to the dear, to its record.

    `ends` are what the user calls base and head, and what they are. `effect` is the change that a
    comparison measured, where one is known, and `traces` how many to take of each end.
    """

    keeps = False

    def __init__(
        self,
        subject: DeclaredSubject,
        ends: Sequence[tuple[str, Commit]],
        effect: Effect | None,
        traces: int,
        *,
        is_compared: bool = False,  # whether the two were compared just now
    ) -> None:
        (_, base), (_, head) = self._named = ends
        settings = {
            "base": base.to_json(),
            "head": head.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
        }
        super().__init__("explain", settings, subject)
        self._traces, self._is_compared = traces, is_compared
        self._ends = base.hash, head.hash
        self.found = Explanation(base, head, effect)

    def names(self) -> Sequence[str]:
        return self._ends

    def begin(self) -> list[str]:
        said = [
            f"{role} {commit.short} {commit.subject}".rstrip()
            for role, commit in (("base", self.found.base), ("head", self.found.head))
        ]
        if self._is_compared and self.found.effect is None:
            said.append("The comparison ended without an answer.")
        elif self.found.effect is None:
            said.append("No comparison of these two is stored; --compare makes one first.")
        return said

    def source(self) -> AbstractContextManager[None]:
        # Both ends are looked at in turn.
        return nullcontext()

    def measure(self, source: None) -> ExitCode:
        try:
            self.look()
        except TimeIsUp as error:
            self._stopped = error
            self.found.notes.append(f"{self._why_stopped()}: what was not looked at is missing.")
        self._record.notes += self.found.notes
        return ExitCode.GOOD

    def print_answer(self) -> None:
        found, answer = self.found, self.found.answer()
        self._console.print()
        self._console.print(found.headline(), style="bold")
        print_sentences(self._console, answer, "bold")
        versus = f"{described(found.head)} against {described(found.base)}"
        tables = [found.table()] if found.clues else []
        page = self._issue(
            found.headline() if found.effect is None else f"Why: {found.headline()}",
            # The causes come before the table that they are taken from.
            "\n\n".join([versus, *map(inline, answer)]),
            tables,
            list(found.context()),
            lasting_names(self._named),
        )
        self._files.show(*tables, page=page)
        print_sentences(self._console, found.context())

    def results(self) -> dict[str, Any]:
        return {} if self._ending else self.found.to_json()

    def look(self) -> None:
        """Look at everything that the subject has.

        Raises CommitUnusable if an end cannot be laid out.
        """
        subject, found = self._subject, self.found
        found.files = files_between(*self._ends, subject)
        found.looked_at += ["files"] if found.files else []
        if folders := subject.engines(self._ends):
            # All ends run in the ruler's own Python, with the same variables.
            self._look_at_engines(folders)
            return
        with subject.ends() as ends:
            found.clues += cell_clues(*map(ends.software, self._ends))
            found.looked_at += ["variables", "packages"]
            if life := subject.traced_life():

                def take(end: str, path: Path) -> Trace:
                    ends.trace(life, end, path)
                    return read_traces(path)

                self._trace(take)
                return
            found.notes.append(_NO_TRACE)
            if isinstance(measured := subject.work.life, CommandLife):
                profiler = FunctionProfiler(ends, measured, self._ends)
                self._trace(profiler, ", of functions of Python")

    def _look_at_engines(self, folders: dict[str, Path]) -> None:
        found = self.found
        metric = found.effect.metric if found.effect else ""
        window, take = _traced(self._subject, folders, metric)
        model = window.engine["model"]
        small = next((small for start, small in _SMALL.items() if model.startswith(start)), MODEL)
        # Of the device that the change was measured on; of both where none is known.
        has_kernels = found.effect is None or found.effect.is_on_gpu
        paths = GPU_PATHS if has_kernels else CPU_PATHS
        paths = paths if found.effect else (*CPU_PATHS, *GPU_PATHS)
        try:
            with Progress(self._console, "counting what a step does"):
                base, head = (folders[end] for end in self._ends)
                clues, notes = count_ends(base, head, paths, model=small, has_kernels=has_kernels)
            found.clues += clues
            found.notes += notes
            kernels = " and kernels compiled for sm_90" if has_kernels else ""
            found.looked_at.append(f"exact counters of a step{stand_in(model, small)}{kernels}")
        except MeasurementFailed as error:
            found.notes.append(f"Nothing was counted: {error}")
        what = f" of {STEPS} decode steps of {window.shape().name} with {model}"
        self._trace(take, f"{what} on {window.ranks} ranks" if window.ranks > 1 else what)

    def _trace(self, take: Callable[[str, Path], Trace], what: str = "") -> None:
        """Take traces of both ends in turns; `take` leaves one of an end at a path and reads it."""
        if not self._traces:
            return
        with Progress(self._console, "tracing", 2 * self._traces, "traces") as bar:
            try:
                pair = _in_turns(take, self._ends, self._traces, bar.advance)
            except MeasurementFailed as error:
                self.found.notes.append(f"The traces are left out: {error}")
                return
        self.found.traces = pair
        self.found.clues += pair.clues()
        count = "a trace" if self._traces == 1 else f"{self._traces} traces"
        self.found.looked_at.append(f"{count} of each end{what}")
        if self._traces == 1:
            self.found.notes.append(
                "One trace of each end has no noise to tell times from: only counts are compared."
            )


def _traced(
    subject: DeclaredSubject, folders: Mapping[str, Path], metric: str
) -> tuple[Window, Callable[[str, Path], Trace]]:
    """The decode steps that are traced for a metric, and what traces them at an end."""
    is_gpu = not set(subject.devices) & set(NO_GPU)
    ran, device = subject.decoded(metric), "cuda" if is_gpu else "cpu"
    engine = ran.engine(ran.named, device, is_quick=not is_gpu)
    window = Window(workload=ran.named.name, quick=not is_gpu, engine=engine, steps=STEPS)
    variables = {"CUDA_VISIBLE_DEVICES": subject.devices[0]} if is_gpu else {}

    def take(end: str, path: Path) -> Trace:
        return torch_trace(window, path, folder=folders[end], variables=variables)[1]

    return window, take


class _Profile(msgspec.Struct):
    """What `python_hook` leaves of a process."""

    is_disturbed: bool
    waits: bool
    functions: list[tuple[str, str, int, Count]]  # name, file, calls, microseconds


@dataclass
class FunctionProfiler(Life):
    """Runs lives of a command in which each Python leaves its profile, and reads these.

    A life of each end is tried first. Where the machine is busy, or several threads or processes
    wait for each other, what counts is the time that they work; else that which goes by.
    """

    lives: Lives
    command: CommandLife
    ends: Sequence[str]
    _is_of_work: bool | None = None

    def __call__(self, end: str, folder: Path) -> list[TraceSummary]:
        """What a life of an end spends its time in; its files go into a folder.

        Raises MeasurementFailed where no Python runs that can be profiled, or the life fails.
        """
        if self._is_of_work is None:
            with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
                tried = [
                    self._profiles(one, Path(scratch, str(number)))
                    for number, one in enumerate(self.ends)
                ]
            every = [process for one in tried for process in one]
            is_disturbed = any(one.is_disturbed for one in every)
            self._is_of_work = len(every) > len(tried) or (
                is_disturbed and not any(one.waits for one in every)
            )
        found = []
        for profile in self._profiles(end, folder):
            work = [WorkTime(name, calls, us, file) for name, file, calls, us in profile.functions]
            spent = sum(one.total_us for one in work)
            found.append(TraceSummary(work, False, spent, 0.0, is_profile=True))
        return found

    def _profiles(self, end: str, folder: Path) -> list[_Profile]:
        self.lives.trace(self, end, folder)
        if not (files := sorted(folder.glob("*.json"))):
            raise MeasurementFailed("no Python ran that could be profiled.")
        try:
            return [read_stored(file, "a profile", _Profile) for file in files]
        except UnreadableFile as error:
            raise MeasurementFailed(str(error)) from None

    def live(self, setting: Setting, metrics: Collection[str]) -> Figures:
        folder = setting.variables[TRACE]
        Path(folder).mkdir()
        shutil.copy(_HOOK, Path(folder, "sitecustomize.py"))
        if self._is_of_work:
            Path(folder, "work").touch()
        paths = os.pathsep.join(filter(None, [folder, setting.variables.get("PYTHONPATH")]))
        # Sets, and what depends on their order, do the same each time.
        told = {"PYTHONHASHSEED": "0", **setting.variables, "PYTHONPATH": paths}
        line, put_first = self.command.command, partial(_PYTHONPATH.sub, f"PYTHONPATH={folder}:")
        line = put_first(line) if isinstance(line, str) else tuple(map(put_first, line))
        command = replace(self.command, command=line, metrics={}, preload=())
        return command.live(replace(setting, variables=told), metrics)


def _in_turns(
    take: Callable[[str, Path], Trace],
    ends: Sequence[str],
    count: int,
    on_trace: Callable[[], object],
) -> TracePair:
    """Traces of both ends; MeasurementFailed says which end gave none."""
    taken: dict[str, list[Trace]] = {"base": [], "head": []}
    order = list(zip(taken, ends, strict=True))
    for number in range(count):
        # Every second time in the other order.
        for role, end in order if number % 2 == 0 else reversed(order):
            with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
                try:
                    taken[role].append(take(end, Path(scratch) / "trace.json"))
                except MeasurementFailed as error:
                    raise MeasurementFailed(f"the {role} gave no trace: {error}") from None
            on_trace()
    return TracePair(*taken.values())


def why(
    subject: DeclaredSubject,
    base: Commit,
    head: Commit,
    options: Sequence[str],
    *,
    sign: int = 1,
    has_commits: bool = True,
    seconds: float | None = None,
) -> list[str]:
    """Sentences about two ends that differ in time, the command that tells more last.

    Only what is cheap is looked at. `options` name what was measured, for that command. `sign` is 1
    where the head is slower, -1 where it is faster. `has_commits` says whether to list the commits
    between the ends. No life is profiled once so many `seconds` are over; None: there is no hurry.
    """
    found: list[str] = []
    # They are hints beside the verdict, which stands without them.
    with suppress(BenchError):
        files = files_between(base.hash, head.hash, subject)
        found += list(files.sentences())[: 2 if has_commits else 1] if files else []
    with suppress(BenchError, TimeIsUp), ending_in_time(seconds):
        if folders := subject.engines(hashes := (base.hash, head.hash)):
            found += _counted(subject, folders[base.hash], folders[head.hash], sign)
            window, take = _traced(subject, folders, "")
            if window.ranks > 1:
                pair = _in_turns(take, hashes, 3, lambda: None)
                ranks = (one for one in pair.slow_rank() if one.leaning == sign)
                found += [f"Traced: {one.sentence}." for one in ranks]
        else:
            found += _profiled(subject, base, head, sign)
    cells = subject.cells
    if base.hash in cells and head.hash in cells:
        clues = cell_clues(cells[base.hash], cells[head.hash])
        found += [f"Besides, {one.sentence}." for one in clues if one.source is Source.VARIABLES]
    ends = shlex.join(words_without_secrets([base.short, head.short, *options]))
    return [*found, f"Why: kvtrail explain {ends}"]


def _counted(subject: DeclaredSubject, base: Path, head: Path, sign: int) -> Iterator[str]:
    """Exact counts of the engines in two folders that lean as the time does, dearest first."""
    paths = CPU_PATHS if set(subject.devices) & set(NO_GPU) else GPU_PATHS
    clues, _ = count_ends(base, head, paths)
    leaning = [one for one in clues if one.leaning == sign]
    # kvtrail's benchmarks are called by their models.
    named = (subject.decoded(one.name).model or one.name for one in subject.metrics)
    where = stand_in(" ".join(named))
    for one in sorted(leaning, key=lambda one: -abs(one.cost_us))[:_COUNTED]:
        yield f"Counted exactly{where}: {one.sentence[0].lower()}{one.sentence[1:]}."


def _profiled(subject: DeclaredSubject, base: Commit, head: Commit, sign: int) -> Iterator[str]:
    """Functions of a Python command of the user's that cause the change, the dearest first."""
    if not isinstance(command := subject.work.life, CommandLife):
        return
    hashes = base.hash, head.hash
    # What was measured stays the record's.
    known = subject.cells, subject.others, subject.remarks
    try:
        with subject.ends() as ends:
            profiler = FunctionProfiler(ends, replace(command, timeout_s=_CHEAP_S), hashes)
            pair = _in_turns(profiler, hashes, 2, lambda: None)
    finally:
        subject.cells, subject.others, subject.remarks = known
    effect = Effect("", Verdict.SLOWER if sign > 0 else Verdict.FASTER, None, None, False, "")
    found = Explanation(base, head, effect, pair, clues=list(pair.clues()))
    for one in found.causes[:_COUNTED]:
        yield f"Profiled: {one.sentence}{found.worth(one)}"
