"""Run profilers on `profile_child`: torch's always, NVIDIA's where they work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.engine_process import ask_engine
from asv_bench.explain.profile_child import Decoded, Window
from asv_bench.explain.trace import TraceSummary, read_trace
from asv_bench.output.record import REPOSITORY
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE

NCU_RANGE, NCU_KERNELS = "attention", 12
NCU_SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
_CHILD = "asv_bench.explain.profile_child"


@dataclass(frozen=True, slots=True)
class Traced:
    """A window as the torch profiler saw it."""

    decoded: Decoded
    summary: TraceSummary
    path: Path = Path()

    def to_json(self) -> dict[str, Any]:
        """What the record says of the tool and of what it saw."""
        seen = {"window": asdict(self.decoded), "summary": asdict(self.summary)}
        return {**ToolReport("torch", (self.path,)).to_json(), **seen}


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The files of a profiler, or a sentence that says why there are none."""

    tool: str
    files: tuple[Path, ...] = ()
    sentence: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return {**asdict(self), "files": [path.name for path in self.files]}


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
        said = ask_engine(folder, _CHILD, task, variables, ranges=ranges)
    except MeasurementFailed as error:
        raise MeasurementFailed(f"the profiled process failed:\n{error}") from None
    decoded = Decoded(**json.loads(said))
    return Traced(decoded, replace(read_trace(path), steps=decoded.steps), path)


def nsight_systems(window: Window, directory: Path) -> ToolReport:
    """A timeline by Nsight Systems, with the engine's NVTX ranges on it."""
    tool, command = "Nsight Systems", shutil.which("nsys")
    if command is None or not _is_on_gpu(window):
        return _left_out(tool, "nsys", command)
    with tempfile.TemporaryDirectory() as scratch:
        trivial, nothing = Path(scratch) / "trivial.nsys-rep", [sys.executable, "-c", "pass"]
        options = ["--trace=none", "--sample=none", "--cpuctxsw=none"]
        done = _nsys(command, trivial, options, nothing)
        if done.returncode or not trivial.is_file():
            why = f"{command} wrote no report of a trivial program"
            return ToolReport(tool, sentence=f"{tool} is left out: {why}.")
    report = directory / "nsys.nsys-rep"
    options = ["--trace=cuda,nvtx", "--cuda-graph-trace=node"]
    options += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return _reported(tool, report, _nsys(command, report, options, _child(window)))


def _nsys(
    nsys: str, report: Path, options: Sequence[str], command: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run a command under nsys, which leaves a report of it."""
    report.unlink(missing_ok=True)
    output = f"--output={report.with_suffix('')}"
    return _run([nsys, "profile", *options, "--force-overwrite=true", output, *command])


def nsight_compute(window: Window, directory: Path) -> ToolReport:
    """Counters of the first few kernels of attention, by Nsight Compute.

    The window is decoded kernel by kernel: in a replayed graph no kernel lies within a range.
    """
    tool, command = "Nsight Compute", shutil.which("ncu")
    if command is None or not _is_on_gpu(window):
        return _left_out(tool, "ncu", command)
    report, details = directory / "ncu.ncu-rep", directory / "ncu.txt"
    report.unlink(missing_ok=True)
    done = _run(
        [
            *(command, "--clock-control", "none", "--profile-from-start", "off"),
            *("--nvtx", "--nvtx-include", f"{NCU_RANGE}/", "--launch-count", str(NCU_KERNELS)),
            *(part for name in NCU_SECTIONS for part in ("--section", name)),
            *("--force-overwrite", "--export", str(report.with_suffix(""))),
            *_child(replace(window, decode="eager", steps=2)),
        ]
    )
    if report.is_file():
        details.write_text(_run([command, "--import", str(report), "--page", "details"]).stdout)
    return _reported(tool, report, done, details)


def _is_on_gpu(window: Window) -> bool:
    return window.device.startswith("cuda")


def _left_out(tool: str, name: str, command: str | None) -> ToolReport:
    why = "the device is not a GPU" if command else f"there is no {name} on the PATH"
    return ToolReport(tool, sentence=f"{tool} is left out: {why}.")


def _reported(
    tool: str, report: Path, done: subprocess.CompletedProcess[str], *more: Path
) -> ToolReport:
    if report.is_file():
        return ToolReport(tool, (report, *more))
    return ToolReport(
        tool, sentence=f"{tool} wrote no report:\n{last_words(done.stdout + done.stderr, 12)}"
    )


def _child(window: Window) -> list[str]:
    return [sys.executable, "-m", _CHILD, window.to_argument()]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return run_apart(command, {NVTX_VARIABLE: "1"})
