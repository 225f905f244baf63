"""`profile`: the summary of a trace, and its tables."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.errors import MeasurementFailed
from asv_bench.explain.profile_child import Decoded, Window, decode_window
from asv_bench.explain.profile_tables import window_tables
from asv_bench.explain.trace import (
    RANGES,
    DeviceTime,
    Event,
    EventArguments,
    RangeTime,
    TraceSummary,
    WorkTime,
    read_trace,
    summarize_trace,
)
from asv_bench.explain.traced import Traced, torch_traces
from asv_bench.output.table import Table

TINY = {"model": "random:gpt2-tiny", "device": "cpu", "decode": "auto"}
WINDOW = Window(workload="scheduler", quick=True, **TINY, steps=4)


def event(
    cat: str, name: str, ts: float, dur: float, tid: int = 1, launch: int | None = None
) -> Event:
    return Event(name, ts, dur, cat, 1, tid, EventArguments(correlation=launch))


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
]


def test_a_summary_adds_up_ranges_kernels_operators_and_the_device() -> None:
    assert summarize_trace(EVENTS) == TraceSummary(
        # A range's device time is that of the kernels launched in it, nested ranges included.
        ranges=[
            RangeTime("forward", 2, 120.0, 40.0, 2),
            RangeTime("attention", 1, 20.0, 10.0, 1),
            RangeTime("readback", 1, 400.0, 0.0, 0),
        ],
        kernels=[
            WorkTime("gemm", 2, 70.0, ("forward",), 70.0),
            WorkTime("decode_attention", 1, 10.0, ("attention",), 10.0),
            WorkTime("Memcpy HtoD", 1, 5.0, (), 5.0),
        ],
        # Operators without those that they call, and with them.
        operators=[
            WorkTime("aten::addmm", 2, 15 - 4 + 6, (), 21),
            WorkTime("aten::linear", 2, 20 - 15 + 3, (), 23),
            WorkTime("aten::to", 1, 9 - 2, (), 9),
            WorkTime("aten::empty", 1, 4.0, (), 4),
            WorkTime("aten::copy_", 1, 2.0, (), 2),
        ],
        outside=WorkTime("outside", 2, 45.0),
        # Busy from 200 to 230, then to 280 from 240 with two kernels at once, then from 290 to 295.
        device=DeviceTime(95.0, 75.0, 4, 2),
        span_us=500.0,
        idle_us=425.0,
        launches=3,
        launch_us=9.0,
        steps=1,
    )
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


def row(table: Table, number: int = 0) -> list[str]:
    return [str(list(column.cells)[number]) for column in table.to_rich().columns]


def traced(decode: str, events: list[Event]) -> Traced:
    return Traced(Decoded(steps=2, decode=decode, step_us=41.5), summarize_trace(events))


def test_two_windows_are_told_apart_and_each_shows_what_it_can() -> None:
    graph = [event for event in EVENTS if event.args.correlation != 1]
    tables = window_tables([traced("eager", EVENTS), traced("graph", graph)])
    assert [table.title for table in tables] == [
        "Time per range: decode=eager, kernel by kernel, to see the ranges (2 steps)",
        "Time per kernel: decode=graph, as it really runs (2 steps)",
    ]
    ranges, kernels = tables
    assert row(ranges) == ["forward", "1.00", "60.0", "1.00", "20.0"]
    assert row(ranges, -1) == ["in no range", "-", "-", "1.00", "22.5"]
    # Time as it really runs, in a range that only the other window knows.
    assert row(kernels) == ["gemm", "forward", "0.50", "40.00", "20.00", "72.7 %"]
    assert row(kernels, 2) == ["Memcpy HtoD", "-", "0.50", "5.00", "2.50", "9.1 %"]
    assert row(kernels, -2) == ["a kernel or copy is running", "-", "1.50", "-", "22.50", "81.8 %"]
    assert row(kernels, -1) == ["gaps between them", "-", "0.50", "-", "5.00", "18.2 %"]
    assert "of 27.5 µs a step, first kernel to last" in kernels.caption
    assert all("41.5 µs" in table.caption for table in tables)
    events = [event("kernel", f"kernel_{number}", 10 * number, 1) for number in range(25)]
    many = window_tables([traced("eager", events)])[-1]
    assert row(many, -3) == ["5 more", "-", "2.50", "1.00", "2.50", "20.0 %"]


def test_one_window_without_a_device_shows_operators() -> None:
    on_host = [event for event in EVENTS if event.cat in ("user_annotation", "cpu_op")]
    ranges, operators = window_tables([traced("eager", on_host)])
    assert ranges.title == "Time per range: decode=eager, as it really runs (2 steps)"
    assert row(ranges) == ["readback", "0.50", "200.0"]
    assert row(operators) == ["aten::addmm", "1.00", "8.50", "8.50", "44.7 %"]


@pytest.mark.parametrize(
    ("device", "decode", "windows"),
    [
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

    monkeypatch.setattr("asv_bench.explain.traced.run_apart", run_apart)
    traces = torch_traces(replace(WINDOW, device=device, decode=decode), tmp_path)
    assert ran == windows
    assert len({one.path for one in traces}) == len(windows)
    assert traces[-1].path == tmp_path / "torch.trace.json.gz"
    assert [one.decoded.decode for one in traces] == [mode for mode, _ in windows]


def test_ranges_are_those_the_engine_opens() -> None:
    from engine.running.ranges import RANGE_NAMES

    assert RANGES == RANGE_NAMES


def test_a_window_is_half_of_what_its_requests_have_with_all_of_them_running(
    tmp_path: Path,
) -> None:
    zipped, plain = tmp_path / "a.json.gz", tmp_path / "a.json"
    decoded = decode_window(replace(WINDOW, steps=1000, trace=str(zipped)))
    steps = WINDOW.shape().new_tokens // 2
    assert (decoded.steps, decoded.decode) == (steps, "eager")
    assert 0 < decoded.step_us < 1e6
    operators = {entry.name: entry.calls for entry in read_trace(zipped).operators}
    # Two layers have five layer norms a step: there is nothing but these steps in the trace.
    assert operators["aten::native_layer_norm"] == steps * 5
    plain.write_bytes(gzip.decompress(zipped.read_bytes()))
    assert read_trace(plain) == read_trace(zipped)


def test_a_workload_that_is_over_before_it_decodes_is_no_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(WINDOW.shape(), new_tokens=1)
    monkeypatch.setattr(Window, "shape", lambda self: short)
    with pytest.raises(MeasurementFailed, match="ended before all of them were decoding"):
        decode_window(WINDOW)


def test_a_process_that_fails_is_said_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="random:nothing"):
        torch_traces(replace(WINDOW, model="random:nothing"), tmp_path)


def test_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    arguments = ["--quick", "--steps", "3", "--device", "cpu", "--json", str(record)]
    done = CliRunner().invoke(build_app(), ["profile", *arguments, "--profile-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "Time per range: decode=eager, as it really runs (3 steps)" in done.output
    for words in ("Without a profiler a step takes", "forward", "Time per operator", "aten::addmm"):
        assert words in done.output
    assert (tmp_path / "scheduler-quick" / "torch.trace.json.gz").is_file()
    [window] = json.loads(record.read_text())["results"]["windows"]
    assert window["file"] == "torch.trace.json.gz"
    assert (window["window"]["steps"], window["window"]["decode"]) == (3, "eager")
    forward = next(one for one in window["summary"]["ranges"] if one["name"] == "forward")
    assert forward["calls"] == 3
