"""Windows of decode steps, traced by the torch profiler in a process of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.profile_child import Decoded, Window
from asv_bench.explain.trace import TraceSummary, read_trace
from asv_bench.output.record import REPOSITORY
from asv_bench.process.environment import borrowed_paths, search_path
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE


@dataclass(frozen=True, slots=True)
class Traced:
    """A window as the torch profiler saw it."""

    decoded: Decoded
    summary: TraceSummary
    path: Path = Path()

    def to_json(self) -> dict[str, Any]:
        """The window and its summary as JSON-ready values."""
        return {
            "file": self.path.name,
            "window": asdict(self.decoded),
            "summary": asdict(self.summary),
        }


def torch_traces(window: Window, directory: Path) -> list[Traced]:
    """Chrome traces by the torch profiler, the one with ranges first.

    The kernels of a replayed graph lie in no range. If the engine decodes by graphs, one window is
    therefore decoded kernel by kernel, for the ranges, and another one as the engine really runs,
    without ranges. Otherwise one window serves for both.
    """
    path = directory / "torch.trace.json.gz"
    if not window.device.startswith("cuda") or window.decode == "eager":
        return [torch_trace(window, path, ranges=True)]
    by_kernel = replace(window, decode="eager")
    return [
        torch_trace(by_kernel, directory / "torch-eager.trace.json.gz", ranges=True),
        torch_trace(window, path),
    ]


def torch_trace(
    window: Window,
    path: Path,
    *,
    ranges: bool = False,
    folder: Path = REPOSITORY,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Traced:
    """A window of the engine in a folder, traced by the torch profiler.

    Raises MeasurementFailed if the process failed; the sentence ends with what it said.
    """
    task = replace(window, trace=str(path)).to_argument()
    try:
        said = ask_engine(folder, "asv_bench.explain.profile_child", task, variables, ranges=ranges)
    except MeasurementFailed as error:
        raise MeasurementFailed(f"the profiled process failed:\n{error}") from None
    decoded = Decoded(**json.loads(said))
    return Traced(decoded, replace(read_trace(path), steps=decoded.steps), path)


def ask_engine(
    folder: Path,
    module: str,
    task: str,
    variables: Mapping[str, str],
    *,
    ranges: bool = False,
) -> str:
    """What a module of today's ruler prints last, with the engine that lies in a folder.

    `ranges` turns the engine's NVTX ranges on. The folder comes first on the search path and the
    checkout last, so that the ruler is found and its engine is not.

    Raises MeasurementFailed with the last words of a process that failed.
    """
    told = {NVTX_VARIABLE: str(int(ranges)), **variables}
    told["PYTHONPATH"] = search_path([str(folder), *borrowed_paths(), str(REPOSITORY)])
    done = run_apart([sys.executable, "-P", "-m", module, task], told)
    if done.returncode or not done.stdout:
        raise MeasurementFailed(last_words(done.stdout + done.stderr))
    return done.stdout.rstrip("\n").rpartition("\n")[2]
