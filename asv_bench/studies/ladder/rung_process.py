"""Processes that measure rungs, each a fresh one, on the device that it is given."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asv_bench.git.repository import WORKING_TREE
from asv_bench.measure.places import CPU, Place
from asv_bench.measure.processes import Job, LifeFailed, Processes
from asv_bench.output.record import REPOSITORY
from asv_bench.process.environment import borrowed_paths, measured_environment, search_path
from asv_bench.process.gpu import GpuConditions, GpuWatch
from asv_bench.studies.ladder.rungs import Rung
from asv_bench.subjects.own_suite import PRELOAD, TIMEOUT_SECONDS, OwnSuite, engine_of

_RULER = "asv_bench"
_SCRIPT = Path(_RULER, "studies", "ladder", "child.py")


@dataclass(frozen=True, slots=True)
class RungSettings:
    """What every process of a ladder has in common.

    Attributes
    ----------
    model, device, dtype
        As for the engine; `device` is "cpu" or "cuda", the process's only GPU.
    quick
        Run a tenth of each workload.
    repeats
        Measured runs a process; None: as many as take about two seconds.
    """

    model: str
    device: str
    dtype: str
    quick: bool
    repeats: int | None

    @classmethod
    def on(cls, device: str, model: str, *, quick: bool) -> RungSettings:
        """The settings for a device."""
        dtype = "float32" if device == CPU else "float16"
        return cls(model, device, dtype, quick, 3 if quick else None)


@dataclass(frozen=True, slots=True)
class RungAnswer:
    """What one process measured of one rung.

    Attributes
    ----------
    workloads
        For each, figures, runs and digests as `rung_run.RungFigures` has them.
    check
        Digests of the token check and how many requests part at near ties; None where unasked.
    gpu
        The GPU meanwhile.
    started_at, process_s
        When the process began, seconds since 1970, and how long it ran.
    """

    workloads: dict[str, dict[str, Any]]
    check: dict[str, Any] | None
    gpu: GpuConditions | None
    started_at: float
    process_s: float


class RungProcesses:
    """Starts the ladder's processes, all of the working tree as it stands when this is made.

    Parameters
    ----------
    settings
        What they have in common.

    Raises
    ------
    GitError
        If the tree holds nothing to measure.
    """

    def __init__(self, settings: RungSettings) -> None:
        self._settings = settings
        self._processes = Processes()
        # The rungs are part of the ruler, so that is laid out beside what it measures.
        self._folder = TemporaryDirectory(prefix="kvtrail-ladder-")
        self._ruler = Path(self._folder.name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / _RULER, self._ruler / _RULER, ignore=ignored)
        suite = OwnSuite(REPOSITORY)
        self._measured = engine_of(suite, suite.resolve(WORKING_TREE).hash)

    def measure(
        self,
        rung: Rung,
        workloads: Sequence[str],
        place: Place,
        *,
        check: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> RungAnswer:
        """Measure a rung on some workloads in one process, after the token check if asked.

        Its environment has `variables`, too, such as those of `in_turns`.

        Raises
        ------
        LifeFailed
            If the process gave no answer.
        """
        started = time.time()
        job = {"rung": rung.label, "workloads": list(workloads), "check": check, "count": []}
        watch = GpuWatch(place.gpus[0]) if place.gpus else None
        told = {**self._variables(), **place.variables(), **(variables or {})}
        with watch or nullcontext():
            answer = self._answer(job, told, place.cores, PRELOAD)
        return RungAnswer(
            answer["workloads"],
            answer.get("check"),
            None if watch is None else watch.conditions(answer["begun"], answer["ended"]),
            started,
            time.time() - started,
        )

    def count(self, rungs: Sequence[Rung]) -> dict[str, dict[str, int]]:
        """Counters of one steady step of each rung, by label; no GPU is touched.

        Raises
        ------
        LifeFailed
            If the process gave no answer.
        """
        job = {"count": [rung.label for rung in rungs]}
        variables = {**self._variables(), "CUDA_VISIBLE_DEVICES": ""}
        counters: dict[str, dict[str, int]] = self._answer(job, variables)["counters"]
        return counters

    def stop(self) -> None:
        """End every process that runs."""
        self._processes.stop()

    def _answer(
        self,
        job: Mapping[str, Any],
        variables: Mapping[str, str],
        cores: tuple[int, ...] = (),
        preload: tuple[str, ...] = (),
    ) -> Any:
        """What the script says of a job."""
        asked = json.dumps({**self._common(), **job})
        words = (sys.executable, "-P", str(self._ruler / _SCRIPT), asked)
        told = Job(words, self._ruler, variables, cores, preload)
        answer = self._processes.answer(told, TIMEOUT_SECONDS)
        if answer is None:
            raise LifeFailed("it ended without an answer.")
        return answer

    def _common(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "model": settings.model,
            "device": settings.device,
            "dtype": settings.dtype,
            "quick": settings.quick,
            "repeats": settings.repeats,
        }

    def _variables(self) -> dict[str, str]:
        paths = [str(self._measured), str(self._ruler), *borrowed_paths()]
        return {**measured_environment(), "PYTHONPATH": search_path(paths)}
