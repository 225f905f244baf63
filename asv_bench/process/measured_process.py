"""Start processes that measure a commit, wait for them, and end them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.process.borrowed_paths import borrowed_paths, search_path
from asv_bench.process.contract import ENVIRONMENT_TYPE
from asv_bench.process.gpu_watch import GpuWatch
from asv_bench.process.run_apart import end_group, kill_group, last_words, start_group
from asv_bench.process.samples import GpuConditions
from asv_bench.process.threads import measured_environment

CPU = "cpu"
TIMEOUT_SECONDS = 900.0

_SCRIPT = Path(__file__).with_name("child.py")
_LAST_LINES = 6


class ProcessFailed(MeasurementFailed):
    """A measured process ended without an answer; the message is its last output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call of one benchmark, see `child.measure`."""

    name: str
    status: str
    samples: tuple[float, ...]
    reason: str
    run: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcomes of a process, and the state of the GPU meanwhile."""

    outcomes: tuple[Outcome, ...]
    gpu: GpuConditions | None


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and the CPU cores that its processes may use; empty: all."""

    device: str
    cores: tuple[int, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether benchmarks run on a GPU there."""
        return self.device != CPU


class ScriptRunner:
    """Runs scripts in processes of their own, at most one at a time in each thread that asks.

    The argument of a script is a JSON file with its job, the "parent" that it must not outlive, its
    "cores", and the path of the JSON "answer" that it writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self,
        script: Path,
        job: Mapping[str, Any],
        place: Place,
        variables: Mapping[str, str],
        *,
        is_watched: bool,
    ) -> tuple[Any, GpuWatch | None]:
        """Run a script to its end; return its answer, and the watch of the place's GPU.

        Parameters
        ----------
        script, job, place
            The file, what it is to do (JSON-ready), and where it runs.
        variables
            Its environment, but for what names the GPU.
        is_watched
            Whether the place's GPU is watched meanwhile.

        Raises
        ------
        ProcessFailed
            If the process gave no answer.
        """
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            folder = Path(scratch)
            facts = {
                "parent": os.getpid(),
                "cores": place.cores,
                "answer": str(folder / "answer.json"),
            }
            (folder / "job.json").write_text(json.dumps({**job, **facts}))
            watch = GpuWatch(place.device) if place.is_gpu and is_watched else None
            with (folder / "said.log").open("wb") as said, watch or nullcontext():
                process = self._start(script, {**variables, **_gpu(place)}, folder, said.fileno())
                try:
                    code = process.wait(TIMEOUT_SECONDS)
                except subprocess.TimeoutExpired:
                    raise ProcessFailed(f"it did not end within {TIMEOUT_SECONDS:.0f} s.") from None
                finally:
                    self._end(process)
            if code or not (folder / "answer.json").is_file():
                raise ProcessFailed(_last_words(folder / "said.log", code))
            return json.loads((folder / "answer.json").read_text()), watch

    def stop(self) -> None:
        """End every process that runs; none is started from now on."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                kill_group(process)

    def _start(
        self, script: Path, variables: Mapping[str, str], folder: Path, output: int
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise ProcessFailed("measuring was stopped.")
            process = start_group(
                # -P: the script's own folder holds parts of the ruler, not what it imports.
                [sys.executable, "-P", str(script), str(folder / "job.json")],
                cwd=folder,
                env=dict(variables),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            self._running.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        end_group(process)
        with self._lock:
            self._running.discard(process)


class ProcessRunner(ScriptRunner):
    """Runs the asv benchmarks in a folder, on the commits in `commits/HASH` of an environment."""

    def __init__(self, benchmarks: Path, environment: Path) -> None:
        super().__init__()
        self._benchmarks = benchmarks
        self._environment = environment

    def discover(self) -> list[dict[str, Any]]:
        """asv's descriptions of all benchmarks.

        Raises
        ------
        ProcessFailed
            If the benchmarks cannot be imported.
        """
        found: list[dict[str, Any]] = self._run(None, Place(CPU), None, 1)[0]
        return found

    def measure(
        self, commit: str, benchmarks: Sequence[str], place: Place, repeats: int = 1
    ) -> Answer:
        """Measure benchmarks, named as asv's runner does, `repeats` times in one process.

        Raises
        ------
        ProcessFailed
            If the process gave no answer.
        """
        content, watch = self._run(commit, place, list(benchmarks), repeats)
        outcomes = tuple(
            Outcome(**{**outcome, "samples": tuple(outcome["samples"])})
            for outcome in content["outcomes"]
        )
        gpu = None if watch is None else watch.conditions(content["begun"], content["ended"])
        return Answer(outcomes, gpu)

    def _run(
        self, commit: str | None, place: Place, benchmarks: list[str] | None, repeats: int
    ) -> tuple[Any, GpuWatch | None]:
        job = {"folder": str(self._benchmarks), "benchmarks": benchmarks, "repeats": repeats}
        return self.run(_SCRIPT, job, place, self._variables(commit), is_watched=bool(benchmarks))

    def _variables(self, commit: str | None) -> dict[str, str]:
        checkout = [] if commit is None else [str(self._environment / "commits" / commit)]
        return {
            **measured_environment(),
            "PYTHONPATH": search_path([*checkout, *borrowed_paths()]),
            "ASV_ENV_TYPE": ENVIRONMENT_TYPE,
            "ASV_ENV_DIR": str(self._environment),
            "ASV_COMMIT": commit or "",
        }


def _gpu(place: Place) -> dict[str, str]:
    """The variables that show a process only the place's GPU."""
    if not place.is_gpu:
        return {}
    return {"CUDA_VISIBLE_DEVICES": place.device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _last_words(log: Path, code: int) -> str:
    said = last_words(log.read_text(errors="replace"), _LAST_LINES)
    ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
    return f"{ended}: {said}"
