"""Lives of a subject's variants in rounds, each in a fresh process on this machine."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asv_bench.git.repository import short
from asv_bench.measure.figures import Figures
from asv_bench.measure.life import Life, Setting, Work
from asv_bench.measure.places import Place
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.measure.samples import Absence, CommitUnusable, Reading, Round, SampleFailed
from asv_bench.measure.software import Software, cell_of
from asv_bench.measure.trees import CANNOT_BE_MEASURED, Laid
from asv_bench.measure.turns import TURNS_VARIABLE, in_turns
from asv_bench.measure.watched import Watched
from asv_bench.output import stored_json
from asv_bench.output.console import doing
from asv_bench.process.environment import TRIAL_VARIABLE
from asv_bench.process.gpu import GpuConditions, GpuWatch
from asv_bench.stats.paired import undisturbed
from asv_bench.subjects.metrics import MetricTable

WALL = "wall_s"
_TIMES = {WALL, "cpu_s"}
"""Times of a whole command: what else the machine does only ever adds to them."""
TRACE = "KVTRAIL_TRACE"
"""Tells a traced life where its trace goes."""
_MEASURED_SECONDS = 2.0
"""What is shorter is repeated, as the least of several figures is steadier than one."""
_MOST_REPEATS = 7
_NOTHING = Absence("it gave no such figure here.", has_failed=False)


def repeats_for(seconds: float) -> int:
    """How often to repeat what takes so long, so that one time of it is little disturbed."""
    return min(_MOST_REPEATS, math.ceil(_MEASURED_SECONDS / max(seconds, 1e-9)))


@dataclass(frozen=True, slots=True)
class _Lived:
    """A life that ended well: when it began and ended, and what it gave."""

    started: float
    ended: float
    figures: Figures
    gpu: GpuConditions | None


class Lives:
    """A source of rounds (`RoundSource`).

    The first life in a variant is not measured: it shows which metrics there are. A reading is what
    the metric takes of a life's windows (`Metric.take`), or what the life says. Where nothing but
    the wall or CPU time of a short command is compared, the command runs several times for a
    reading, which is the least of them: what else the machine does only ever adds time. The cells
    of a round then take turns, there and back, so that what it does for some seconds meets all of
    them. Other lives of a round run one after another, but two of them in turns where they can;
    then the windows in which neither was disturbed count. Of several builds each round takes the
    next, of all cells.

    Metrics of a life that `work` does not name are kept in `others`.
    """

    def __init__(
        self,
        work: Work,
        places: Sequence[Place],
        lay_out: Callable[[str], tuple[Laid, ...]],
        processes: Processes,
    ) -> None:
        self._work = work
        self._life = work.life
        self._metrics = {metric.name: metric for metric in work.metrics}
        # Of checks alone nothing is known of time.
        self._compared = [one.name for one in work.metrics if not one.check] or [*self._metrics]
        self._scores: dict[tuple[str, str], Any] = {}  # by command and result
        self._places = {place.device: place for place in places}
        self.devices: Sequence[str] = tuple(self._places)
        self._lay_out = lay_out
        self._processes = processes
        self._tried: dict[str, tuple[tuple[Laid, ...], dict[str, Absence]] | CommitUnusable] = {}
        self._trying: dict[str, threading.Lock] = {}  # by commit
        self._repeats: int | None = None
        self._rounds: Counter[tuple[tuple[str, ...], str]] = Counter()  # by cells and device
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._known: dict[str, Software] = {}
        self._looked: dict[str, int] = {}
        self.cells: dict[str, Software] = {}
        self.others: dict[str, dict[str, list[float]]] = {}
        self.listed: dict[str, MetricTable] = {}
        """The benchmarks that a preset found in first lives."""

    def stop(self) -> None:
        """See `RoundSource`; nothing is measured from then on."""
        self._processes.stop()

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `RoundSource`: lay it out, make its setup, and live once without measuring."""
        place = self._place(device)
        # Different commits are tried at the same time, each on the device that asked for it.
        with self._trying.setdefault(commit, threading.Lock()):
            if commit not in self._tried:
                try:
                    self._tried[commit] = self._try(commit, place)
                except CommitUnusable as error:
                    self._tried[commit] = error
            tried = self._tried[commit]
        if isinstance(tried, CommitUnusable):
            raise tried
        return tried[1]

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        """See `RoundSource`: lives for each group of metrics.

        SampleFailed has the round of those groups of which none failed.
        """
        readings: list[dict[str, Reading]] = [{} for _ in cells]
        measured = Round(tuple(order), tuple(readings))
        failures: list[SampleFailed] = []
        build = self._next_build(cells, device or self.devices[0])
        lacking = {name for cell in cells for name in self.prepare(cell, device)}
        wanted = [name for name in metrics or self._metrics if name not in lacking]
        for names in self._life.groups(wanted):
            try:
                lived = self._side_by_side([cells[one] for one in order], names, device, build)
            except SampleFailed as failure:
                failures.append(failure)
                continue
            for place, of_cell in zip(order, lived, strict=True):
                readings[place] |= of_cell
        if failures:
            first, failed = failures[0], [name for one in failures for name in one.benchmarks]
            raise SampleFailed(first.commit, failed, first.reason, measured)
        return measured

    @property
    def _is_time_alone(self) -> bool:
        """Whether nothing but times of whole commands is compared."""
        return {*self._compared} <= _TIMES and not self._life.has_windows

    def _place(self, device: str | None) -> Place:
        return self._places[device or self.devices[0]]

    def _next_build(self, cells: Sequence[str], device: str) -> int | None:
        """Which builds a round takes, so that each of them meets every order of the cells."""
        count, key = self._work.table.builds, (tuple(cells), device)
        number = self._rounds[key] + self.devices.index(device)
        self._rounds[key] += 1
        # Orders repeat after four rounds.
        shift = 2 * (number // count) if count % 4 == 0 else 0
        return (number + shift) % count if count > 1 else None

    def _side_by_side(
        self, cells: Sequence[str], names: Sequence[str], device: str, build: int | None
    ) -> list[dict[str, Reading]]:
        """Readings of lives in this order; two take turns where they can."""
        place = self._place(device)
        if len(cells) != 2 or not self._life.takes_turns(names):
            return self._readings(cells, names, place, build)
        shared = place if self._life.has_windows else place.for_turns()
        first, second = in_turns(
            lambda number, told: self._readings([cells[number]], names, shared, build, told)[0]
        )
        # Another share of the windows than the middle is asked for as it is.
        takes = {} if self._life.has_windows else self._metrics
        for name in (one for one in names if one in takes and takes[one].take == "median"):
            values = undisturbed(first[name].samples, second[name].samples)
            first[name], second[name] = (
                replace(reading, value=value)
                for reading, value in zip((first[name], second[name]), values, strict=True)
            )
        return [first, second]

    def _readings(
        self,
        cells: Sequence[str],
        names: Sequence[str],
        place: Place,
        build: int | None,
        variables: Mapping[str, str] | None = None,
    ) -> list[dict[str, Reading]]:
        """What lives give of a group of metrics, told by some variables more."""
        lived: list[list[_Lived]] = [[] for _ in cells]
        for repeat in range(self._repeats or 1 if self._is_time_alone else 1):
            for number in range(len(cells))[:: -1 if repeat % 2 else 1]:
                commit = cells[number]
                laid = self._laid(commit, build or 0)
                self._look(commit, laid, place)
                setting = self._setting(laid, place, variables or {})
                try:
                    lived[number].append(self._live(setting, place, names))
                except LifeFailed as failure:
                    raise SampleFailed(commit, names, str(failure)) from None
        return [
            self._reading(commit, names, place, build, found)
            for commit, found in zip(cells, lived, strict=True)
        ]

    def _reading(
        self,
        commit: str,
        names: Sequence[str],
        place: Place,
        build: int | None,
        lived: Sequence[_Lived],
    ) -> dict[str, Reading]:
        """What the lives of a cell gave, by metric."""
        figures = Figures.of_windows({"": [one.figures for one in lived]})
        with self._lock:
            # What is not compared is shown beside the answer.
            for name in (one for one in figures.values if one not in self._metrics):
                of_metric = self.others.setdefault(name, {})
                of_metric.setdefault(commit, []).append(statistics.median(figures.values[name]))
        for name in names:
            if name not in figures.values:
                absence = figures.absences.get(name, _NOTHING)
                raise SampleFailed(commit, (name,), absence.reason)
        cell = self._known.get(commit)
        return {
            name: Reading(
                commit=commit,
                benchmark=name,
                value=figures.value(
                    name,
                    "min" if self._is_time_alone and name in _TIMES else self._metrics[name].take,
                ),
                samples=figures.values[name],
                device=place.device,
                started_at=lived[0].started,
                process_s=lived[-1].ended - lived[0].started,
                gpu=lived[-1].gpu,
                pairs=self._life.pairs,
                client=cell.client.hash if cell and cell.client else "",
                build=build,
                results=figures.results.get(name, ()),
            )
            for name in names
        }

    def software(self, name: str) -> Software:
        """What a variant runs with, as a life of it shows, also where that fails.

        Raises CommitUnusable where it cannot be laid out, or its setup fails.
        """
        try:
            self.prepare(name)
        except CommitUnusable:
            if name not in self._known:
                raise
        return self._known[name]

    def trace(self, life: Life, name: str, target: Path) -> None:
        """Run a life of a variant that leaves its trace at `target`.

        Raises LifeFailed where it does not end well.
        """
        setting = self._setting(self._lay_out(name)[0], self._place(None), {TRACE: str(target)})
        life.live(setting, ())

    def take_account(self) -> tuple[dict[str, Software], dict[str, dict[str, list[float]]]]:
        """Cells and others since this was asked last."""
        with self._lock:
            taken = dict(self.cells), dict(self.others)
            self.cells.clear()
            self.others.clear()
        return taken

    def _try(self, commit: str, place: Place) -> tuple[tuple[Laid, ...], dict[str, Absence]]:
        builds = self._lay_out(commit)
        watched = Watched(self._processes) if self._work.lists_packages else None
        names = tuple(self._metrics)
        try:
            with doing(f"warming up {short(commit)}"):
                setting = self._setting(builds[0], place, {TRIAL_VARIABLE: "1"}, watched)
                figures = self._live(setting, place, names).figures
                for other in builds[1:]:
                    self._live(self._setting(other, place, {TRIAL_VARIABLE: "1"}), place, names)
        except LifeFailed as failure:
            is_lacking = failure.code == CANNOT_BE_MEASURED
            raise CommitUnusable(commit, str(failure), is_lacking=is_lacking) from None
        finally:
            if watched is not None:
                self._watched[commit] = watched
                self._look(commit, builds[0], place)
        with self._lock:
            self.listed |= figures.listed
            if self._repeats is None and WALL in figures.values:
                # Settled by the first commit and kept: both halves of a pair are measured alike.
                self._repeats = repeats_for(figures.values[WALL][0])
        absences = {
            name: figures.absences.get(name, _NOTHING)
            for name in names
            if name not in figures.values
        }
        missing = [absences[name] for name in self._compared if name in absences]
        if len(missing) == len(self._compared):
            is_lacking = not any(absence.has_failed for absence in missing)
            raise CommitUnusable(commit, missing[0].reason, is_lacking=is_lacking)
        return builds, absences

    def _look(self, commit: str, laid: Laid, place: Place) -> None:
        """Note what a variant runs with; any setup since may have changed what it imports."""
        setups = len(self._tried) if self._work.table.setup else 0
        if commit not in self._watched or self._looked.get(commit) == setups:
            return
        self._looked[commit] = setups
        told, table = self._setting(laid, place, {}).variables, self._work.table
        found = cell_of(self._watched[commit], laid, told, self._processes, table)
        if known := self._known.get(commit):
            found = replace(known, elsewhere={**known.elsewhere, **found.elsewhere})
        self.cells[commit] = self._known[commit] = found

    def _live(self, setting: Setting, place: Place, names: Sequence[str]) -> _Lived:
        watches = [GpuWatch(gpu) for gpu in place.gpus]
        started, begun = time.time(), time.monotonic()
        with ExitStack() as watching:
            for watch in watches:
                watching.enter_context(watch)
            figures = self._life.live(setting, names)
        begun, ended = figures.span or (begun, time.monotonic())
        for number, watch in enumerate([watches[0], *watches] if watches[1:] else watches):
            # Of two lives at the same time it is of both.
            if (peak := watch.peak_memory_bytes()) and TURNS_VARIABLE not in setting.variables:
                name = f"peak_gpu_bytes@{number - 1}" if number else "peak_gpu_bytes"
                figures.values[name] = (float(peak),)
        gpu = watches[0].conditions(begun, ended) if watches else None
        lived = _Lived(started, time.time(), figures, gpu)
        for name in [one for one in names if self._metrics[one].score and one in figures.results]:
            try:
                results = figures.results.pop(name)
                figures.values[name] = tuple(self._score(name, one, setting) for one in results)
            except (LifeFailed, ValueError) as error:
                del figures.values[name]
                figures.absences[name] = Absence(f"what scores it: {error}", has_failed=True)
        return lived

    def _score(self, name: str, result: str, setting: Setting) -> float:
        """What a check's command says of a result, for most after a first, unmeasured life."""
        metric = self._metrics[name]
        if (key := (metric.score, result)) not in self._scores:
            at, table = (setting.laid.tree, setting.variables, setting.cores), self._work.table
            job = Job(metric.score, *at, table.preload, given=result)
            self._scores[key] = setting.processes.answer(job, table.timeout_s)
        found = self._scores[key]
        # By checks, whatever their point of load.
        found = found.get(name.partition("@")[0]) if isinstance(found, dict) else found
        return metric.figure(stored_json.number(found))

    def _setting(
        self, laid: Laid, place: Place, told: Mapping[str, str], processes: Processes | None = None
    ) -> Setting:
        variables = laid.environment(self._work.table, **place.variables(), **told)
        return Setting(laid, variables, place.cores, processes or self._processes)

    def _laid(self, commit: str, build: int) -> Laid:
        tried = self._tried[commit]
        assert not isinstance(tried, CommitUnusable)
        builds = tried[0]
        if not builds[build].tree.is_dir():
            # Of many setups the cache forgets the oldest.
            builds = self._lay_out(commit)
        return builds[build]
