"""Start processes that measure a commit, wait for them, and end them."""

from __future__ import annotations

import json
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
from asv_bench.process.forked_process import (
    SHARED_MODULES,
    ForkedProcess,
    Forkserver,
    ForkserverGone,
)
from asv_bench.process.gpu_watch import GpuWatch
from asv_bench.process.run_apart import last_words
from asv_bench.process.samples import GpuConditions
from asv_bench.process.threads import measured_environment

CPU = "cpu"
TIMEOUT_SECONDS = 900.0

_SCRIPT = Path(__file__).with_name("child.py")
_OUTPUT = "said.log"
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
    windows: tuple[float, ...] = ()


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

    The processes are forks of one that has imported `SHARED_MODULES`, where a script measures.

    The argument of a script is a JSON file with its job, and the path of the JSON "answer" that it
    writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: Forkserver | None = None
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
            Whether it measures, and the place's GPU is watched meanwhile.

        Raises
        ------
        ProcessFailed
            If the process gave no answer.
        """
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            folder = Path(scratch)
            answer, output = folder / "answer.json", folder / _OUTPUT
            output.touch()
            (folder / "job.json").write_text(json.dumps({**job, "answer": str(answer)}))
            arguments = [str(script), str(folder / "job.json")]
            shared = SHARED_MODULES if is_watched else ()
            watch = GpuWatch(place.device) if place.is_gpu and is_watched else None
            try:
                with (
                    watch or nullcontext(),
                    self._begin(arguments, {**variables, **_gpu(place)}, place, shared) as process,
                ):
                    code = process.wait(TIMEOUT_SECONDS)
            except TimeoutError:
                raise ProcessFailed(f"it did not end within {TIMEOUT_SECONDS:.0f} s.") from None
            except ForkserverGone as gone:
                raise ProcessFailed(f"the process that should fork it ended: {gone}") from None
            if code or not answer.is_file():
                raise ProcessFailed(_last_words(output, code))
            return json.loads(answer.read_text()), watch

    def stop(self) -> None:
        """End every process that runs; none is started from now on."""
        with self._lock:
            self._is_stopped = True
            if self._server is not None:
                self._server.close()

    def _begin(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        place: Place,
        shared: Sequence[str],
    ) -> ForkedProcess:
        folder = Path(arguments[-1]).parent
        with self._lock:
            if self._is_stopped:
                raise ProcessFailed("measuring was stopped.")
            if self._server is None or self._server.has_ended:
                self._server = Forkserver(variables)
            return self._server.fork(
                arguments,
                variables,
                folder=folder,
                output=folder / _OUTPUT,
                cores=place.cores,
                shared=shared,
            )


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
        self,
        commit: str,
        benchmarks: Sequence[str],
        place: Place,
        repeats: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> Answer:
        """Measure benchmarks, named as asv's runner does, `repeats` times in one process.

        Its environment has `variables`, too, such as those of `SharedTurns`.

        Raises
        ------
        ProcessFailed
            If the process gave no answer.
        """
        content, watch = self._run(commit, place, list(benchmarks), repeats, variables)
        outcomes = tuple(
            Outcome(
                **{**outcome, **{name: tuple(outcome[name]) for name in ("samples", "windows")}}
            )
            for outcome in content["outcomes"]
        )
        gpu = None if watch is None else watch.conditions(content["begun"], content["ended"])
        return Answer(outcomes, gpu)

    def _run(
        self,
        commit: str | None,
        place: Place,
        benchmarks: list[str] | None,
        repeats: int,
        variables: Mapping[str, str] | None = None,
    ) -> tuple[Any, GpuWatch | None]:
        job = {"folder": str(self._benchmarks), "benchmarks": benchmarks, "repeats": repeats}
        all_variables = {**self._variables(commit), **(variables or {})}
        return self.run(_SCRIPT, job, place, all_variables, is_watched=bool(benchmarks))

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
