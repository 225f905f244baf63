"""The profilers around `profile_child`: torch's always, NVIDIA's where they work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.profile_child import Decoded, Window
from asv_bench.explain.trace import TraceSummary, read_trace
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE

NCU_SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")


@dataclass(frozen=True, slots=True)
class Traced:
    """A window as the torch profiler saw it."""

    decoded: Decoded
    summary: TraceSummary

    def to_json(self) -> dict[str, Any]:
        """The window and its summary as JSON-ready values."""
        return {"window": self.decoded.to_json(), "summary": self.summary.to_json()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a profiler left behind: its files, or the sentence that says why there are none."""

    tool: str
    files: tuple[Path, ...] = ()
    sentence: str = ""
    traced: Traced | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-ready values."""
        return {
            "tool": self.tool,
            "files": [path.name for path in self.files],
            "sentence": self.sentence,
            **({} if self.traced is None else self.traced.to_json()),
        }


def torch_traces(window: Window, directory: Path) -> list[Outcome]:
    """Chrome traces by the torch profiler with their summaries, the one with ranges first.

    A replayed graph has no kernel inside a range. Where the engine decodes by graphs, one window is
    therefore decoded kernel by kernel, for the ranges, and another as the engine really runs and
    without the ranges' cost; elsewhere one window is both.
    """
    if not window.device.startswith("cuda") or window.decode == "eager":
        return [torch_trace(window, directory / "torch.trace.json.gz", ranges=True)]
    by_kernel = replace(window, decode="eager")
    return [
        torch_trace(by_kernel, directory / "torch-eager.trace.json.gz", ranges=True),
        torch_trace(window, directory / "torch.trace.json.gz", ranges=False),
    ]


def torch_trace(window: Window, path: Path, *, ranges: bool) -> Outcome:
    """A Chrome trace by the torch profiler, with or without the engine's ranges, and its summary.

    Raises
    ------
    MeasurementFailed
        If the process failed; the sentence ends with what it said.
    """
    done = _run(_child(replace(window, trace=str(path))), ranges=ranges)
    if done.returncode or not path.is_file():
        raise MeasurementFailed(f"the profiled process failed:\n{_last_lines(done)}")
    decoded = Decoded(**json.loads(done.stdout.splitlines()[-1]))
    return Outcome("torch", (path,), traced=Traced(decoded, read_trace(path)))


def nsight_systems(window: Window, directory: Path) -> Outcome:
    """A timeline by Nsight Systems, with the engine's NVTX ranges on it."""
    tool = "Nsight Systems"
    command = shutil.which("nsys")
    if command is None:
        return Outcome(tool, sentence="Nsight Systems is left out: there is no nsys on the PATH.")
    if not window.device.startswith("cuda"):
        return Outcome(tool, sentence="Nsight Systems is left out: the device is not a GPU.")
    if not nsys_is_usable(command):
        return Outcome(
            tool,
            sentence=f"Nsight Systems is left out: {command} wrote no report of a trivial program.",
        )
    report = directory / "nsys.nsys-rep"
    report.unlink(missing_ok=True)
    done = _run(
        [
            *(command, "profile", "--trace=cuda,nvtx", "--cuda-graph-trace=node"),
            *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=true", f"--output={report.with_suffix('')}"),
            *_child(replace(window, trace=None)),
        ]
    )
    if not report.is_file():
        return Outcome(tool, sentence=f"Nsight Systems wrote no report:\n{_last_lines(done)}")
    return Outcome(tool, (report,))


def nsys_is_usable(command: str) -> bool:
    """Whether nsys turns the run of a trivial program into a report file."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "trivial"
        done = _run(
            [
                *(command, "profile", "--trace=none", "--sample=none", "--cpuctxsw=none"),
                *("--force-overwrite=true", f"--output={output}"),
                *(sys.executable, "-c", "pass"),
            ]
        )
        return done.returncode == 0 and output.with_suffix(".nsys-rep").is_file()


def nsight_compute(window: Window, directory: Path, *, nvtx_range: str, kernels: int) -> Outcome:
    """Counters of the first `kernels` kernels within an NVTX range, by Nsight Compute.

    The window is decoded kernel by kernel: in a replayed graph no kernel lies within a range.
    """
    tool = "Nsight Compute"
    command = shutil.which("ncu")
    if command is None:
        return Outcome(tool, sentence="Nsight Compute is left out: there is no ncu on the PATH.")
    if not window.device.startswith("cuda"):
        return Outcome(tool, sentence="Nsight Compute is left out: the device is not a GPU.")
    report = directory / "ncu.ncu-rep"
    report.unlink(missing_ok=True)
    done = _run(
        [
            *(command, "--clock-control", "none", "--profile-from-start", "off"),
            *("--nvtx", "--nvtx-include", f"{nvtx_range}/", "--launch-count", str(kernels)),
            *(part for name in NCU_SECTIONS for part in ("--section", name)),
            *("--force-overwrite", "--export", str(report.with_suffix(""))),
            *_child(replace(window, trace=None, decode="eager", steps=2)),
        ]
    )
    if not report.is_file():
        return Outcome(tool, sentence=f"Nsight Compute wrote no report:\n{_last_lines(done)}")
    details = directory / "ncu.txt"
    details.write_text(_run([command, "--import", str(report), "--page", "details"]).stdout)
    return Outcome(tool, (report, details))


def _child(window: Window) -> list[str]:
    return [sys.executable, "-m", "asv_bench.explain.profile_child", window.to_argument()]


def _run(command: Sequence[str], *, ranges: bool = True) -> subprocess.CompletedProcess[str]:
    return run_apart(command, {NVTX_VARIABLE: "1" if ranges else "0"})


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    return last_words(done.stdout + done.stderr, 12)
