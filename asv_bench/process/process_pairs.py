"""Pairs of real processes, one for each commit, on one device."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from asv_bench.git.repository import short
from asv_bench.process.contract import TRIAL_VARIABLE
from asv_bench.process.doing import doing
from asv_bench.process.gpu_watch import why_discarded
from asv_bench.process.measured_process import Answer, Outcome, Place, ProcessFailed, ProcessRunner
from asv_bench.process.paired_windows import undisturbed
from asv_bench.process.samples import Absence, CommitUnusable, Pair, Reading, SampleFailed
from asv_bench.process.threads import measured_threads
from asv_bench.process.turns import in_turns

MEASURED_SECONDS = 2.0
"""A process without a GPU repeats a benchmark that is shorter, as the least of several figures is
steadier than one. One that makes several runs by itself is not repeated where it takes turns."""
MOST_REPEATS = 7


class ProcessPairs:
    """A source of pairs of processes.

    All figures of one run of the engine are taken from that run; figures of different runs are
    measured in different processes. The first process of a commit, which is not measured, shows
    which figures share a run.

    Parameters
    ----------
    lay_out
        Unpacks a commit, or raises CommitUnusable.
    runner
        Starts processes.
    benchmarks
        asv's names with parameters, and for each its name in asv's runner.
    devices
        "cpu", or UUIDs of GPUs.
    is_compared
        Whether figures are compared: a process then repeats a short benchmark, of which it gives
        the least figure, and only positive figures count.
    in_turns
        Whether the two processes of a pair take turns of one run of the engine, in benchmarks that
        make several; None: on a CPU.
    """

    def __init__(
        self,
        lay_out: Callable[[str], object],
        runner: ProcessRunner,
        benchmarks: Mapping[str, str],
        devices: Sequence[str],
        *,
        is_compared: bool = True,
        in_turns: bool | None = None,
    ) -> None:
        self._lay_out = lay_out
        self._runner = runner
        self._ids = dict(benchmarks)
        self._names = {identifier: name for name, identifier in benchmarks.items()}
        self._places = {place.device: place for place in shared_out(devices)}
        self._prepared: dict[str, Mapping[str, Absence] | CommitUnusable] = {}
        self._runs: dict[str, str] = {}
        self._repeats: dict[str, int] = {}
        on_gpu = self._places[self.devices[0]].is_gpu
        self._is_compared = is_compared
        self._may_repeat = is_compared and not on_gpu
        self._takes_turns = not on_gpu if in_turns is None else in_turns
        self._in_turns: set[str] = set()
        self._trying: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> ProcessPairs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def devices(self) -> Sequence[str]:
        """See `PairSource`."""
        return tuple(self._places)

    @property
    def prepares_together(self) -> bool:
        """See `PairSource`: not on a CPU, where that first run says how often to repeat one."""
        return self._places[self.devices[0]].is_gpu

    def stop(self) -> None:
        """See `PairSource`; the source measures nothing from then on."""
        self._runner.stop()

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `PairSource`: unpack the commit, and run everything once without measuring.

        That process compiles the kernels, which stay on disk, for GPUs of this kind.
        """
        with doing(f"warming up {short(commit)}"):
            return self._prepare(commit, self._places[device or self.devices[0]])

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """See `PairSource`."""
        place = self._places[device or self.devices[0]]
        pairs: dict[str, Pair] = {}
        for run, names in self._by_run((base, head), benchmarks, place).items():
            order = (head, base) if head_first else (base, head)
            measure = self._measure_in_turns if run in self._in_turns else self._measure_in_order
            first, second = measure(order, names, place)
            of_base, of_head = (second, first) if head_first else (first, second)
            for name in names:
                discarded = why_discarded(of_base[name].gpu, of_head[name].gpu)
                pairs[name] = Pair(of_base[name], of_head[name], head_first, discarded)
        return pairs

    def life(
        self,
        commit: str,
        *,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Reading]:
        """See `LifeSource`: a process for each run of the engine, which takes turns with none."""
        place = self._places[device or self.devices[0]]
        readings: dict[str, Reading] = {}
        failures: list[SampleFailed] = []
        for names in self._by_run((commit,), benchmarks, place).values():
            try:
                readings.update(*self._measure_in_order((commit,), names, place))
            except SampleFailed as failure:
                failures.append(failure)
        if failures:
            lacking = [name for failure in failures for name in failure.benchmarks]
            raise SampleFailed(commit, lacking, failures[0].reason, readings)
        return readings

    def _by_run(
        self, commits: Sequence[str], benchmarks: Collection[str] | None, place: Place
    ) -> dict[str, list[str]]:
        """Those of the benchmarks that all commits have, by the run that they share."""
        # Tried where they run: on another device a pair may be running meanwhile.
        lacking = {name for commit in commits for name in self._prepare(commit, place)}
        groups: dict[str, list[str]] = {}
        for name in benchmarks or self._ids:
            if name not in lacking:
                groups.setdefault(self._runs[name], []).append(name)
        return groups

    def _prepare(self, commit: str, place: Place) -> Mapping[str, Absence]:
        with self._lock:
            trying = self._trying.setdefault(commit, threading.Lock())
        # Different commits are tried at the same time, each on the device that asked for it.
        with trying:
            if commit not in self._prepared:
                try:
                    self._prepared[commit] = self._try(commit, place)
                except CommitUnusable as error:
                    self._prepared[commit] = error
            prepared = self._prepared[commit]
        if isinstance(prepared, CommitUnusable):
            raise CommitUnusable(commit, prepared.reason, is_lacking=prepared.is_lacking)
        return prepared

    def _try(self, commit: str, place: Place) -> dict[str, Absence]:
        self._lay_out(commit)
        identifiers = list(self._names)
        try:
            answer = self._runner.measure(
                commit, identifiers, place, variables={TRIAL_VARIABLE: "1"}
            )
        except ProcessFailed as failure:
            raise CommitUnusable(commit, str(failure)) from None
        absences = {
            self._names[outcome.name]: Absence(reason, outcome.status == "failed")
            for outcome in answer.outcomes
            if (reason := self._why_unusable(outcome))
        }
        if len(absences) == len(self._ids):
            first = next(iter(absences.values()))
            is_lacking = not any(absence.has_failed for absence in absences.values())
            raise CommitUnusable(commit, first.reason, is_lacking=is_lacking)
        with self._lock:
            self._learn(answer)
        return absences

    def _learn(self, answer: Answer) -> None:
        """Which benchmarks share a run, and how often a process repeats it."""
        seconds: dict[str, float] = {}
        for outcome in answer.outcomes:
            if outcome.status == "measured":
                run = self._runs.setdefault(
                    self._names[outcome.name], outcome.run or self._names[outcome.name]
                )
                seconds[run] = seconds.get(run, 0.0) + outcome.seconds
            if outcome.windows and self._takes_turns:
                self._in_turns.add(self._runs[self._names[outcome.name]])
        for run, spent in seconds.items():
            # Settled by the first commit and kept: both halves of a pair are measured alike.
            self._repeats.setdefault(run, repeats_for(spent) if self._may_repeat else 1)

    def _measure_in_order(
        self, commits: Sequence[str], names: Sequence[str], place: Place
    ) -> list[dict[str, Reading]]:
        repeats = self._repeats[self._runs[names[0]]]
        return [self._measure(commit, names, place, repeats) for commit in commits]

    def _measure_in_turns(
        self, commits: Sequence[str], names: Sequence[str], place: Place
    ) -> list[dict[str, Reading]]:
        shared = for_turns(place)
        one, other = in_turns(
            lambda number, variables: self._measure(
                commits[number], names, shared, variables=variables
            )
        )
        for name in names:
            values = undisturbed(one[name].samples, other[name].samples)
            one[name], other[name] = (
                replace(reading, value=value)
                for reading, value in zip((one[name], other[name]), values, strict=True)
            )
        return [one, other]

    def _measure(
        self,
        commit: str,
        names: Sequence[str],
        place: Place,
        repeats: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> dict[str, Reading]:
        started = time.time()
        try:
            answer = self._runner.measure(
                commit, [self._ids[name] for name in names], place, repeats, variables
            )
        except ProcessFailed as failure:
            raise SampleFailed(commit, names, str(failure)) from None
        process_s = time.time() - started
        values: dict[str, list[float]] = {}
        windows: dict[str, list[float]] = {}
        for outcome in answer.outcomes:
            name = self._names[outcome.name]
            if reason := self._why_unusable(outcome):
                raise SampleFailed(commit, (name,), reason)
            values.setdefault(name, []).extend(outcome.samples)
            windows.setdefault(name, []).extend(outcome.windows or outcome.samples)
        return {
            name: Reading(
                commit=commit,
                benchmark=name,
                # What else runs on the machine only ever adds time.
                value=min(values[name]),
                samples=tuple(windows[name]),
                device=place.device,
                started_at=started,
                process_s=process_s,
                gpu=answer.gpu,
            )
            for name in values
        }

    def _why_unusable(self, outcome: Outcome) -> str:
        """Why an outcome has no figure of use; empty if it has one."""
        if outcome.status != "measured":
            return outcome.reason or f"the benchmark was {outcome.status}"
        if self._is_compared and min(outcome.samples) <= 0:
            return f"it gave {min(outcome.samples):g}, and only positive figures have a ratio"
        return ""


def repeats_for(seconds: float) -> int:
    """How often a process repeats a run of this length, so that one is little disturbed."""
    return min(MOST_REPEATS, math.ceil(MEASURED_SECONDS / max(seconds, 1e-9)))


def shared_out(devices: Sequence[str]) -> list[Place]:
    """The devices; several of them share this process's cores equally."""
    if len(devices) == 1:
        return [Place(devices[0])]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(devices))
    return [
        Place(device, tuple(cores[index * share % len(cores) :][:share]))
        for index, device in enumerate(devices)
    ]


def for_turns(place: Place) -> Place:
    """Where two processes take turns: on the same cores, as many as either has threads.

    Cores differ for as long as a neighbour works beside one of them. Were each process on a core of
    its own, one would have the slower in all its turns. That holds on a GPU, too, where the host
    works longer than the GPU.
    """
    cores = place.cores or tuple(sorted(os.sched_getaffinity(0)))
    return replace(place, cores=cores[-measured_threads() :])
