"""`profile`: the arithmetic of its tables, and which profilers it leaves out and why."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asv_bench.__main__ import build_app
from asv_bench.errors import MeasurementFailed
from asv_bench.explain.profile_child import Decoded, Window, decode_window
from asv_bench.explain.profile_tables import window_tables
from asv_bench.explain.profilers import Traced, nsight_compute, nsight_systems, torch_traces
from asv_bench.explain.trace import (
    RANGES,
    DeviceTime,
    RangeTime,
    WorkTime,
    read_trace,
    summarize_trace,
)
from asv_bench.output.table import Table

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


def event(
    cat: str, name: str, ts: float, dur: float, tid: int = 1, launch: int | None = None
) -> dict[str, Any]:
    made = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}
    return made if launch is None else {**made, "args": {"correlation": launch}}


EVENTS = [
    event("user_annotation", "forward", 0, 50),
    event("user_annotation", "forward", 100, 70),
    event("user_annotation", "attention", 10, 20),
    event("user_annotation", "readback", 0, 400, tid=2),
    event("user_annotation", "ProfilerStep#1", 0, 500),
    event("gpu_user_annotation", "forward", 5, 90, tid=7),
    # Launched in forward and in the attention within it, both run long after their launch.
    event("cuda_runtime", "cudaLaunchKernel", 0, 2, launch=1),
    event("cuda_driver", "cuLaunchKernelEx", 12, 2, launch=2),
    event("kernel", "gemm", 200, 30, tid=7, launch=1),
    event("kernel", "decode_attention", 240, 10, tid=7, launch=2),
    # A graph's kernels share their launch, which is in no range of its thread.
    event("cuda_runtime", "cudaGraphLaunch", 60, 5, launch=3),
    event("kernel", "gemm", 240, 40, tid=8, launch=3),
    event("gpu_memcpy", "Memcpy HtoD", 290, 5, tid=7, launch=3),
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
    """A range's device time is that of the kernels launched in it, nested ranges included."""
    summary = summarize_trace(EVENTS)
    assert summary.ranges == [
        RangeTime("forward", 2, 120.0, 40.0, 2),
        RangeTime("attention", 1, 20.0, 10.0, 1),
        RangeTime("readback", 1, 400.0, 0.0, 0),
    ]
    assert summary.outside == WorkTime("outside", 2, 45.0)


def test_the_device_is_busy_while_anything_runs() -> None:
    # 200 to 230, then 240 to 280 with two kernels at once, then 290 to 295.
    assert summarize_trace(EVENTS).device == DeviceTime(95.0, 75.0, 4, 2)
    assert summarize_trace(EVENTS[:5]).device is None


def test_a_launch_where_a_range_ends_is_not_in_it() -> None:
    events = [
        event("user_annotation", "append", 0, 10),
        event("user_annotation", "attention", 10, 10),
        event("cuda_runtime", "cudaLaunchKernel", 10, 1, launch=1),
        event("cuda_runtime", "cudaLaunchKernel", 20, 1, launch=2),
        event("kernel", "first", 30, 1, launch=1),
        event("kernel", "second", 40, 1, launch=2),
    ]
    ranges = {entry.name: entry.ranges for entry in summarize_trace(events).kernels}
    assert ranges == {"first": ("attention",), "second": ()}


def test_kernels_and_copies_are_sorted_by_their_time() -> None:
    assert summarize_trace(EVENTS).kernels == [
        WorkTime("gemm", 2, 70.0, ("forward",)),
        WorkTime("decode_attention", 1, 10.0, ("attention",)),
        WorkTime("Memcpy HtoD", 1, 5.0),
    ]


def test_operators_count_only_their_own_time() -> None:
    operators = {entry.name: entry for entry in summarize_trace(EVENTS).operators}
    assert operators["aten::linear"] == WorkTime("aten::linear", 2, 20 - 15 + 3)
    assert operators["aten::addmm"] == WorkTime("aten::addmm", 2, 15 - 4 + 6)
    assert operators["aten::to"] == WorkTime("aten::to", 1, 9 - 2)
    assert operators["aten::copy_"] == WorkTime("aten::copy_", 1, 2.0)
    assert operators["aten::empty"] == WorkTime("aten::empty", 1, 4.0)


def row(table: Table, number: int = 0) -> list[str]:
    return [str(list(column.cells)[number]) for column in table.to_rich().columns]


def traced(decode: str, events: list[dict[str, Any]]) -> Traced:
    return Traced(Decoded(steps=2, decode=decode, step_us=41.5), summarize_trace(events))


def test_two_windows_are_told_apart_and_each_shows_what_it_can() -> None:
    graph = [event for event in EVENTS if event.get("args") != {"correlation": 1}]
    tables = window_tables([traced("eager", EVENTS), traced("graph", graph)])
    assert [table.title for table in tables] == [
        "Time per range: decode=eager, kernel by kernel, to see the ranges (2 steps)",
        "Device time: decode=graph, as it really runs (2 steps)",
        "Time per kernel: decode=graph, as it really runs (2 steps)",
    ]
    ranges, device, kernels = tables
    assert row(ranges) == ["forward", "1.00", "60.0", "1.00", "20.0"]
    assert row(ranges, -1) == ["in no range", "-", "-", "1.00", "22.5"]
    assert row(device) == ["step, first kernel to last", "-", "27.5", "100.0 %"]
    assert row(device, 1) == ["a kernel or copy is running", "1.5", "22.5", "81.8 %"]
    assert row(device, 2) == ["gaps between them", "0.5", "5.0", "18.2 %"]
    # Time as it really runs, in a range that only the other window knows.
    assert row(kernels) == ["gemm", "forward", "0.50", "40.00", "20.00", "72.7 %"]
    assert row(kernels, 2) == ["Memcpy HtoD", "-", "0.50", "5.00", "2.50", "9.1 %"]
    assert "41.5 µs" in str(ranges.caption)
    assert "41.5 µs" in str(device.caption)


def test_one_window_without_a_device_shows_operators() -> None:
    on_host = [event for event in EVENTS if event["cat"] in ("user_annotation", "cpu_op")]
    ranges, operators = window_tables([traced("eager", on_host)])
    assert ranges.title == "Time per range: decode=eager, as it really runs (2 steps)"
    assert row(ranges) == ["readback", "0.50", "200.0"]
    assert row(operators)[0] == "aten::addmm"


def test_many_kernels_are_summed_up() -> None:
    events = [event("kernel", f"kernel_{number}", 10 * number, 1) for number in range(25)]
    kernels = window_tables([traced("eager", events)])[-1]
    assert row(kernels, -1) == ["5 more", "-", "2.50", "1.00", "2.50", "20.0 %"]


@pytest.mark.parametrize(
    ("device", "decode", "windows"),
    [
        ("cuda", "auto", [("eager", "1"), ("auto", "0")]),
        ("cuda:1", "graph", [("eager", "1"), ("graph", "0")]),
        ("cuda", "eager", [("eager", "1")]),
        ("cpu", "auto", [("auto", "1")]),
    ],
)
def test_graphs_are_traced_beside_a_window_with_ranges(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    decode: str,
    windows: list[tuple[str, str]],
) -> None:
    ran: list[tuple[str, str]] = []

    def run_apart(
        command: list[str], variables: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        window = json.loads(command[-1])
        ran.append((window["decode"], variables["KVTRAIL_NVTX"]))
        Path(window["trace"]).write_bytes(gzip.compress(b'{"traceEvents": []}'))
        decoded = Decoded(steps=4, decode=window["decode"], step_us=1.0)
        return subprocess.CompletedProcess(command, 0, json.dumps(asdict(decoded)), "")

    monkeypatch.setattr("asv_bench.explain.profilers.run_apart", run_apart)
    outcomes = torch_traces(replace(WINDOW, device=device, decode=decode), tmp_path)
    assert ran == windows
    assert len({path for outcome in outcomes for path in outcome.files}) == len(windows)
    assert outcomes[-1].files == (tmp_path / "torch.trace.json.gz",)
    assert [one.traced and one.traced.decoded.decode for one in outcomes] == [
        mode for mode, _ in windows
    ]


def test_a_trace_is_read_gzipped_or_plain(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    assert read_trace(tmp_path / "a.json") == read_trace(tmp_path / "a.json.gz")


def test_ranges_are_those_the_engine_opens() -> None:
    from engine.running.ranges import RANGE_NAMES

    assert RANGES == RANGE_NAMES


def test_a_window_is_decode_steps_with_every_request_running(tmp_path: Path) -> None:
    trace = tmp_path / "torch.trace.json.gz"
    decoded = decode_window(replace(WINDOW, trace=str(trace)))
    assert (decoded.steps, decoded.decode) == (4, "eager")
    assert decoded.step_us is not None
    assert 0 < decoded.step_us < 1e6
    operators = {entry.name: entry.calls for entry in read_trace(trace).operators}
    # Two layers have five layer norms a step: there is nothing but the four steps in the trace.
    assert operators["aten::native_layer_norm"] == 4 * 5


def test_a_window_is_at_most_half_of_what_its_requests_have(tmp_path: Path) -> None:
    asked = replace(WINDOW, steps=1000, trace=str(tmp_path / "torch.trace.json.gz"))
    assert decode_window(asked).steps == WINDOW.shape().new_tokens // 2


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
    compute = nsight_compute(window, tmp_path)
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
    assert "asv_bench.explain.profile_child" in real
    assert real.startswith("1 profile")
    assert "--capture-range=cudaProfilerApi" in real
    assert "asv_bench" not in trivial


def test_ncu_looks_at_few_kernels_of_one_range_without_touching_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "bin", "ncu", RECORDING, monkeypatch)
    window = replace(WINDOW, device="cuda", decode="graph")
    outcome = nsight_compute(window, tmp_path)
    assert outcome.files == (tmp_path / "ncu.ncu-rep", tmp_path / "ncu.txt")
    command = (tmp_path / "bin" / "ncu.log").read_text().splitlines()[0]
    assert command.startswith("1 ")
    for part in ("--clock-control none", "--nvtx-include attention/", "--launch-count 12"):
        assert part in command
    assert '"decode": "eager"' in command


def test_a_process_that_fails_is_said_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="random:nothing"):
        torch_traces(replace(WINDOW, model="random:nothing"), tmp_path)


@pytest.mark.usefixtures("no_tools")
def test_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    arguments = ["--quick", "--steps", "3", "--device", "cpu", "--profile-dir"]
    done = CliRunner().invoke(
        build_app(), ["profile", *arguments, str(tmp_path), "--json", str(record)]
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    for words in (
        "Time per range: decode=eager, as it really runs (3 steps)",
        "Without a profiler a step takes",
        "forward",
        "Time per operator",
        "aten::addmm",
        "no nsys",
        "no ncu",
    ):
        assert words in done.output
    assert (tmp_path / "scheduler-quick" / "torch.trace.json.gz").is_file()
    torch_tool = json.loads(record.read_text())["results"]["tools"][0]
    assert torch_tool["window"]["steps"] == 3
    assert torch_tool["window"]["decode"] == "eager"
    forward = next(entry for entry in torch_tool["summary"]["ranges"] if entry["name"] == "forward")
    assert forward["calls"] == 3
