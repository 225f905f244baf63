"""`profile`: the summary of a trace, its tables, and the window of steps that is traced."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.cli.profile import role_table
from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import (
    Event,
    EventArguments,
    RangeTime,
    TraceSummary,
    WorkTime,
    read_traces,
    summarize_trace,
)
from asv_bench.explain.window import Decoded, Traced, Window, decode_window, torch_traces
from asv_bench.memory.bandwidth import Bandwidth
from asv_bench.memory.floor import KERNEL_ROLES, Role, kernel_roles
from tests.fresh_python import ROOT

TINY = {"model": "random:gpt2-tiny", "device": "cpu"}
WINDOW = Window(workload="scheduler", quick=True, **TINY, steps=4)


def event(
    cat: str, name: str, ts: float, dur: float, tid: int = 1, launch: int | None = None
) -> Event:
    return Event(name, ts, dur, cat, 1, tid, EventArguments(correlation=launch))


ON_HOST = [
    event("user_annotation", "forward", 0, 50),
    event("user_annotation", "forward", 100, 70),
    event("user_annotation", "attention", 10, 20),
    event("user_annotation", "readback", 0, 400, tid=2),
    event("user_annotation", "ProfilerStep#1", 0, 500),
    event("cpu_op", "aten::linear", 0, 20),
    event("cpu_op", "aten::addmm", 2, 15),
    event("cpu_op", "aten::empty", 3, 4),
    event("cpu_op", "aten::addmm", 30, 6),
    event("cpu_op", "aten::linear", 1, 3, tid=2),
    event("cpu_op", "aten::copy_", 50, 2),
    event("cpu_op", "aten::to", 50, 9),
]
EVENTS = [
    *ON_HOST,
    event("gpu_user_annotation", "forward", 5, 90, tid=7),
    # Launched in forward and in the attention within it, both run long after their launch.
    event("cuda_runtime", "cudaLaunchKernel", 0, 2, launch=1),
    event("cuda_driver", "cuLaunchKernelEx", 12, 2, launch=2),
    event("kernel", "gemm", 200, 30, tid=7, launch=1),
    event("kernel", "decode_attention", 240, 10, tid=7, launch=2),
    # Where a range ends, a launch is not in it.
    event("cuda_runtime", "cudaLaunchKernel", 170, 1, launch=4),
    # A graph's kernels share their launch, which is in no range of its thread.
    event("cuda_runtime", "cudaGraphLaunch", 60, 5, launch=3),
    event("kernel", "gemm", 240, 40, tid=8, launch=3),
    event("gpu_memcpy", "Memcpy HtoD", 290, 5, tid=7, launch=4),
]


def test_a_summary_adds_up_ranges_and_kernels() -> None:
    assert summarize_trace(EVENTS) == TraceSummary(
        work=[
            WorkTime("gemm", 2, 70.0),
            WorkTime("decode_attention", 1, 10.0),
            WorkTime("Memcpy HtoD", 1, 5.0),
        ],
        is_device=True,
        # A range's device time is that of the kernels launched in it, nested ranges included.
        ranges=[
            RangeTime("forward", 2, 120.0, 40.0),
            RangeTime("attention", 1, 20.0, 10.0),
            RangeTime("readback", 1, 400.0, 0.0),
        ],
        span_us=500.0,
        # Busy from 200 to 230, then to 280 from 240 with two kernels at once, then from 290 to 295.
        idle_us=425.0,
        launches=4,
        launch_us=10.0,
        steps=1,
    )


def test_without_a_device_operators_are_told_with_and_without_those_that_they_call() -> None:
    summary = summarize_trace(ON_HOST)
    assert not summary.is_device
    assert summary.work == [
        WorkTime("aten::addmm", 2, 15 - 4 + 6),
        WorkTime("aten::linear", 2, 20 - 15 + 3),
        WorkTime("aten::to", 1, 9 - 2),
        WorkTime("aten::empty", 1, 4.0),
        WorkTime("aten::copy_", 1, 2.0),
    ]


PRODUCTS = ("linear_stream", "linear_tiles", "linear_stream")
ATTENTION_IN = (Role.ATTENTION_IN, Role.ATTENTION)
BEHIND = (Role.ATTENTION_OUT, Role.FEED_FORWARD_IN, Role.FEED_FORWARD_OUT)


@pytest.mark.parametrize(
    ("layer", "roles"),
    [
        (("linear_row", "ring_attention", *PRODUCTS), (*ATTENTION_IN, *BEHIND)),
        (("row_attention", *PRODUCTS), (Role.ATTENTION, *BEHIND)),
        (
            *(("rms_norm_rows", "nvjet_a", "ring_attention", "Memset", "nvjet_b", "cutlass_c"),),
            *((None, *ATTENTION_IN, None, *BEHIND[:2]),),
        ),
    ],
    ids=["separate", "joined attention", "library"],
)
def test_every_kernel_of_a_step_has_its_role(
    layer: tuple[str, ...], roles: tuple[Role | None, ...]
) -> None:
    rest = ("xmma_d",) if roles[0] is None else ()
    step = ("embed_rows", *2 * (*layer, *rest), "head_stream", "pick_tokens")
    whole = 2 * (*roles, *BEHIND[2:] * len(rest))
    assert list(kernel_roles(2 * step)) == 2 * [None, *whole, Role.HEAD, None]


def test_the_named_kernels_exist() -> None:
    """A kernel that is renamed must be renamed in the ruler too."""
    source = "\n".join(path.read_text() for path in (ROOT / "kernels").rglob("*.py"))
    for name in (*KERNEL_ROLES, "linear_row", "linear_tiles", "linear_stream"):
        assert f"\ndef {name}(" in source, name


@pytest.mark.parametrize("first", ["linear_row", "row_attention"])
def test_parts_of_a_fused_step_are_set_against_the_bandwidth(tmp_path: Path, first: str) -> None:
    names = ["embed_rows", first, "ring_attention", *PRODUCTS, "head_stream", "pick_tokens"]
    if first == "row_attention":
        del names[2]
    # Kernels start 4 µs apart and run 5: each waits 1 µs for the one before.
    steps = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * step + 4 * place, "dur": 5}
        for step in range(2)
        for place, name in enumerate(names)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(steps))
    read = dict.fromkeys(Role, 8e6)
    [summary] = read_traces(path)
    decoded = Decoded(2, "graph", 98.7, context=257.0, bytes=read)
    traced = Traced(decoded, summary, path)
    table = role_table(traced, Bandwidth(4e12, 1, [1.0]))
    assert table is not None
    rows = {row["part"]: row for row in table.to_json()}
    assert rows["head"] == {
        **{"part": "head", "kernels": ["head_stream"], "calls": 1.0},
        **{"bytes": 8e6, "us": 4.0, "fraction": 0.5},
    }
    joined = first == "row_attention"
    assert ("attention in" in rows) != joined
    assert rows["attention, append"]["bytes"] == (16e6 if joined else 8e6)
    assert (rows["all else"]["us"], rows["all else"]["fraction"]) == (5.0 + 4.0, None)
    assert rows["step"]["bytes"] == 6 * 8e6
    path.write_text(json.dumps([{**one, "name": "gemm"} for one in steps]))
    assert role_table(traced, Bandwidth(4e12, 1, [1.0])) is None


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
    work = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}

    def run_apart(
        command: list[str], variables: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        window = json.loads(command[-1])
        ran.append((window["decode"], variables["KVTRAIL_NVTX"]))
        Path(window["trace"]).write_bytes(gzip.compress(json.dumps([work]).encode()))
        decoded = Decoded(4, window["decode"], step_us=1.0, context=9.0, bytes={})
        return subprocess.CompletedProcess(command, 0, json.dumps(asdict(decoded)), "")

    monkeypatch.setattr("asv_bench.explain.window.run_apart", run_apart)
    traces = torch_traces(replace(WINDOW, device=device, decode=decode), tmp_path)
    assert ran == windows
    assert len({one.path for one in traces}) == len(windows)
    assert traces[-1].path == tmp_path / "torch.trace.json.gz"
    assert [one.decoded.decode for one in traces] == [mode for mode, _ in windows]


def test_a_window_is_half_of_what_its_requests_have_with_all_of_them_running(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json.gz"
    decoded = decode_window(replace(WINDOW, steps=1000, trace=str(path)))
    steps = WINDOW.shape().new_tokens // 2
    assert (decoded.steps, decoded.decode) == (steps, "eager")
    assert 0 < decoded.step_us < 1e6
    # In the middle of the requests: as many tokens are left after it as there were before.
    assert decoded.context == pytest.approx(WINDOW.shape().mean_context, abs=2)
    operators = {entry.name: entry.calls for entry in read_traces(path)[0].work}
    # Two layers have five layer norms a step: there is nothing but these steps in the trace.
    assert operators["aten::native_layer_norm"] == steps * 5
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    assert read_traces(path.with_suffix(""))[0] == read_traces(path)[0]


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
    for words in (
        "Time per range: decode=eager (3 steps)",
        "Without a profiler a step takes",
        "forward",
        "Time per operator",
        "aten::addmm",
    ):
        assert words in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines() if line.startswith("│"))
    assert (tmp_path / "scheduler-quick" / "torch.trace.json.gz").is_file()
    [window] = json.loads(record.read_text())["results"]["windows"]
    assert window["file"] == "torch.trace.json.gz"
    assert (window["window"]["steps"], window["window"]["decode"]) == (3, "eager")
    forward = next(one for one in window["summary"]["ranges"] if one["name"] == "forward")
    assert forward["calls"] == 3
