"""Run profilers on `profile_child`: torch's always, NVIDIA's where they work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.explain.profile_child import Decoded, Window
from asv_bench.explain.trace import TraceSummary, read_trace
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE

NCU_RANGE, NCU_KERNELS = "attention", 12
NCU_SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")


@dataclass(frozen=True, slots=True)
class Traced:
    """A window as the torch profiler saw it."""

    decoded: Decoded
    summary: TraceSummary


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files of a profiler, or a sentence that says why there are none."""

    tool: str
    files: tuple[Path, ...] = ()
    sentence: str = ""
    traced: Traced | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON-ready values."""
        content = {
            "tool": self.tool,
            "files": [path.name for path in self.files],
            "sentence": self.sentence,
        }
        if (traced := self.traced) is None:
            return content
        return content | {"window": asdict(traced.decoded), "summary": asdict(traced.summary)}


def torch_traces(window: Window, directory: Path) -> list[Outcome]:
    """Chrome traces by the torch profiler with their summaries, the one with ranges first.

    The kernels of a replayed graph lie in no range. If the engine decodes by graphs, one window is
    therefore decoded kernel by kernel, for the ranges, and another one as the engine really runs,
    without ranges. Otherwise one window serves for both.
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

    Raises MeasurementFailed if the process failed; the sentence ends with what it said.
    """
    done = _run(_child(replace(window, trace=str(path))), ranges=ranges)
    if done.returncode or not path.is_file():
        raise MeasurementFailed(f"the profiled process failed:\n{_last_lines(done)}")
    decoded = Decoded(**json.loads(done.stdout.splitlines()[-1]))
    return Outcome("torch", (path,), traced=Traced(decoded, read_trace(path)))


def nsight_systems(window: Window, directory: Path) -> Outcome:
    """A timeline by Nsight Systems, with the engine's NVTX ranges on it."""
    command = _command("nsys", window)
    if command is None:
        return _left_out("Nsight Systems", "nsys")
    if not nsys_is_usable(command):
        return Outcome(
            "Nsight Systems",
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
    return _reported("Nsight Systems", report, done)


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


def nsight_compute(window: Window, directory: Path) -> Outcome:
    """Counters of the first few kernels of attention, by Nsight Compute.

    The window is decoded kernel by kernel: in a replayed graph no kernel lies within a range.
    """
    command = _command("ncu", window)
    if command is None:
        return _left_out("Nsight Compute", "ncu")
    report = directory / "ncu.ncu-rep"
    report.unlink(missing_ok=True)
    done = _run(
        [
            *(command, "--clock-control", "none", "--profile-from-start", "off"),
            *("--nvtx", "--nvtx-include", f"{NCU_RANGE}/", "--launch-count", str(NCU_KERNELS)),
            *(part for name in NCU_SECTIONS for part in ("--section", name)),
            *("--force-overwrite", "--export", str(report.with_suffix(""))),
            *_child(replace(window, trace=None, decode="eager", steps=2)),
        ]
    )
    outcome = _reported("Nsight Compute", report, done)
    if outcome.files:
        details = directory / "ncu.txt"
        details.write_text(_run([command, "--import", str(report), "--page", "details"]).stdout)
        outcome = replace(outcome, files=(report, details))
    return outcome


def _command(name: str, window: Window) -> str | None:
    """The path of an NVIDIA profiler; None if it is missing or the device is no GPU."""
    return shutil.which(name) if window.device.startswith("cuda") else None


def _left_out(tool: str, name: str) -> Outcome:
    is_there = shutil.which(name) is not None
    why = "the device is not a GPU" if is_there else f"there is no {name} on the PATH"
    return Outcome(tool, sentence=f"{tool} is left out: {why}.")


def _reported(tool: str, report: Path, done: subprocess.CompletedProcess[str]) -> Outcome:
    if not report.is_file():
        return Outcome(tool, sentence=f"{tool} wrote no report:\n{_last_lines(done)}")
    return Outcome(tool, (report,))


def _child(window: Window) -> list[str]:
    return [sys.executable, "-m", "asv_bench.explain.profile_child", window.to_argument()]


def _run(command: Sequence[str], *, ranges: bool = True) -> subprocess.CompletedProcess[str]:
    return run_apart(command, {NVTX_VARIABLE: "1" if ranges else "0"})


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    return last_words(done.stdout + done.stderr, 12)
