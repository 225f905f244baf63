"""`profile`: the arithmetic of its tables, and which profilers it leaves out and why."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.commands.profile import summary_tables
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.profile_child import Window, decode_window
from asv_bench.profilers import nsight_compute, nsight_systems, torch_trace
from asv_bench.trace import RANGES, WorkTime, read_trace, summarize_trace

WINDOW = Window(
    workload="scheduler",
    quick=True,
    model="random:gpt2-tiny",
    device="cpu",
    dtype="auto",
    decode="auto",
    steps=4,
    trace=None,
)


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}


EVENTS = [
    event("user_annotation", "forward", 0, 50),
    event("user_annotation", "forward", 100, 70),
    event("user_annotation", "attention", 10, 20),
    event("user_annotation", "ProfilerStep#1", 0, 500),
    event("gpu_user_annotation", "forward", 5, 90, tid=7),
    event("kernel", "gemm", 0, 30, tid=7),
    event("kernel", "gemm", 40, 10, tid=7),
    event("gpu_memcpy", "Memcpy HtoD", 60, 5, tid=7),
    event("cpu_op", "aten::linear", 0, 20),
    event("cpu_op", "aten::addmm", 2, 15),
    event("cpu_op", "aten::empty", 3, 4),
    event("cpu_op", "aten::addmm", 30, 6),
    event("cpu_op", "aten::linear", 1, 3, tid=2),
    event("cpu_op", "aten::copy_", 50, 2),
    event("cpu_op", "aten::to", 50, 9),
    {"ph": "i", "cat": "cpu_op", "name": "marker", "ts": 0},
]


def test_ranges_add_up_on_host_and_device() -> None:
    forward, attention = summarize_trace(EVENTS).ranges
    assert (forward.name, forward.calls, forward.host_us, forward.device_us) == (
        "forward",
        2,
        120.0,
        90.0,
    )
    assert (attention.name, attention.host_us, attention.device_us) == ("attention", 20.0, None)


def test_kernels_and_copies_are_sorted_by_their_time() -> None:
    assert summarize_trace(EVENTS).kernels == [
        WorkTime("gemm", 2, 40.0),
        WorkTime("Memcpy HtoD", 1, 5.0),
    ]


def test_operators_count_only_their_own_time() -> None:
    operators = {entry.name: entry for entry in summarize_trace(EVENTS).operators}
    assert operators["aten::linear"] == WorkTime("aten::linear", 2, 20 - 15 + 3)
    assert operators["aten::addmm"] == WorkTime("aten::addmm", 2, 15 - 4 + 6)
    assert operators["aten::to"] == WorkTime("aten::to", 1, 9 - 2)
    assert operators["aten::copy_"] == WorkTime("aten::copy_", 1, 2.0)
    assert operators["aten::empty"] == WorkTime("aten::empty", 1, 4.0)


def test_tables_are_per_step() -> None:
    ranges, kernels = summary_tables(summarize_trace(EVENTS), steps=2)
    assert [next(iter(column.cells)) for column in ranges.columns] == [
        "forward",
        "1.00",
        "60.0",
        "45.0",
    ]
    assert [next(iter(column.cells)) for column in kernels.columns] == [
        "gemm",
        "1.00",
        "20.00",
        "20.00",
        "88.9 %",
    ]


def test_a_trace_is_read_gzipped_or_plain(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    assert read_trace(tmp_path / "a.json") == read_trace(tmp_path / "a.json.gz")


def test_ranges_are_those_the_engine_opens() -> None:
    from engine.ranges import RANGE_NAMES

    assert RANGES == RANGE_NAMES


def test_a_window_is_decode_steps_with_every_request_running(tmp_path: Path) -> None:
    trace = tmp_path / "torch.trace.json.gz"
    assert decode_window(replace(WINDOW, trace=str(trace))) == 4
    assert trace.is_file()


def test_a_workload_that_is_over_before_it_decodes_is_no_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(WINDOW.shape(), new_tokens=1)
    monkeypatch.setattr(Window, "shape", lambda self: short)
    with pytest.raises(MeasurementFailed, match="ended before all of them were decoding"):
        decode_window(WINDOW)


def executable(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_tools")
def test_absent_tools_are_said_in_a_sentence(tmp_path: Path) -> None:
    window = replace(WINDOW, device="cuda")
    systems = nsight_systems(window, tmp_path)
    compute = nsight_compute(window, tmp_path, nvtx_range="attention", kernels=1)
    assert (systems.files, compute.files) == ((), ())
    assert "there is no nsys on the PATH" in systems.sentence
    assert "there is no ncu on the PATH" in compute.sentence


def test_an_nsys_that_writes_no_report_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "bin", "nsys", "exit 0", monkeypatch)
    outcome = nsight_systems(replace(WINDOW, device="cuda"), tmp_path)
    assert outcome.files == ()
    assert "wrote no report of a trivial program" in outcome.sentence


# A profiler that writes the report it was asked for and keeps its command line and NVTX setting.
RECORDING = """
for word in "$@"; do
  case "$word" in --output=*) touch "${word#--output=}.nsys-rep";; esac
  if [ "$last" = --export ]; then touch "$word.ncu-rep"; fi
  last="$word"
done
echo "$KVTRAIL_NVTX $@" >> "$0.log"
"""


def test_a_usable_nsys_profiles_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "bin", "nsys", RECORDING, monkeypatch)
    outcome = nsight_systems(replace(WINDOW, device="cuda"), tmp_path)
    assert outcome.files == (tmp_path / "nsys.nsys-rep",)
    trivial, real = (tmp_path / "bin" / "nsys.log").read_text().splitlines()
    assert "asv_bench.profile_child" in real
    assert real.startswith("1 profile")
    assert "--capture-range=cudaProfilerApi" in real
    assert "asv_bench" not in trivial


def test_ncu_looks_at_few_kernels_of_one_range_without_touching_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "bin", "ncu", RECORDING, monkeypatch)
    window = replace(WINDOW, device="cuda", decode="graph")
    outcome = nsight_compute(window, tmp_path, nvtx_range="append", kernels=3)
    assert outcome.files == (tmp_path / "ncu.ncu-rep", tmp_path / "ncu.txt")
    command = (tmp_path / "bin" / "ncu.log").read_text().splitlines()[0]
    assert command.startswith("1 ")
    for part in ("--clock-control none", "--nvtx-include append/", "--launch-count 3"):
        assert part in command
    assert '"decode": "eager"' in command


def test_a_process_that_fails_is_said_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="random:nothing"):
        torch_trace(replace(WINDOW, model="random:nothing"), tmp_path)


def test_an_unknown_range_is_refused() -> None:
    done = CliRunner().invoke(build_app(), ["profile", "--ncu-range", "prefill"])
    assert isinstance(done.exception, Refused)
    assert "must be one of schedule" in str(done.exception)


@pytest.mark.usefixtures("no_tools")
def test_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    arguments = ["--quick", "--steps", "3", "--device", "cpu", "--profile-dir"]
    done = CliRunner().invoke(
        build_app(), ["profile", *arguments, str(tmp_path), "--json", str(record)]
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    for words in (
        "Time per range",
        "forward",
        "Time per operator",
        "aten::addmm",
        "no nsys",
        "no ncu",
    ):
        assert words in done.output
    assert (tmp_path / "scheduler-quick" / "torch.trace.json.gz").is_file()
    torch_tool = json.loads(record.read_text())["results"]["tools"][0]
    assert torch_tool["steps"] == 3
    forward = next(entry for entry in torch_tool["summary"]["ranges"] if entry["name"] == "forward")
    assert forward["calls"] == 3
