"""`profile`: the summary of a trace, its tables, and the window of steps that is traced."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.cli.profile import role_table
from asv_bench.errors import MeasurementFailed
from asv_bench.explain.trace import (
    Decoded,
    Event,
    TraceSummary,
    Window,
    WorkTime,
    decode_window,
    read_traces,
    summarize_trace,
    torch_trace,
)
from asv_bench.memory import KERNEL_ROLES, Bandwidth, Role, kernel_roles
from tests.fresh_python import ROOT

TINY = {"model": "random:gpt2-tiny", "device": "cpu"}
WINDOW = Window(workload="scheduler", quick=True, engine=TINY, steps=4)


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> Event:
    return Event(name, ts, dur, cat, 1, tid)


ON_HOST = [
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
    # The device repeats the host's mark.
    event("gpu_user_annotation", "ProfilerStep#1", 5, 490, tid=7),
    event("cuda_runtime", "cudaLaunchKernel", 0, 2),
    event("cuda_driver", "cuLaunchKernelEx", 12, 2),
    event("cuda_runtime", "cudaGraphLaunch", 60, 5),
    event("cuda_runtime", "cudaMemcpyAsync", 70, 9),
    event("kernel", "gemm", 200, 30, tid=7),
    event("kernel", "decode_attention", 240, 10, tid=7),
    event("kernel", "gemm", 240, 40, tid=8),
    event("gpu_memcpy", "Memcpy HtoD", 290, 5, tid=7),
]


def test_a_summary_adds_up_kernels_launches_and_gaps() -> None:
    assert summarize_trace(EVENTS) == TraceSummary(
        work=[
            WorkTime("gemm", 2, 70.0),
            WorkTime("decode_attention", 1, 10.0),
            WorkTime("Memcpy HtoD", 1, 5.0),
        ],
        is_device=True,
        span_us=500.0,
        # Busy from 200 to 230, then to 280 from 240 with two kernels at once, then from 290 to 295.
        idle_us=425.0,
        launches=3,
        launch_us=9.0,
        steps=1,
    )


def test_without_a_device_operators_are_told_without_those_that_they_call() -> None:
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
FIRST = (Role.ATTENTION_IN, Role.ATTENTION)
BEHIND = (Role.ATTENTION_OUT, Role.FEED_FORWARD_IN, Role.FEED_FORWARD_OUT)


@pytest.mark.parametrize(
    ("layer", "roles"),
    [
        (("linear_row", "ring_attention", *PRODUCTS), (*FIRST, *BEHIND)),
        (("row_attention", *PRODUCTS), (Role.ATTENTION, *BEHIND)),
        (
            ("rms_norm_rows", "nvjet_a", "ring_attention", "Memset", "gemm_b", "cutlass", "xmma"),
            (None, *FIRST, None, *BEHIND),
        ),
    ],
    ids=["separate", "joined attention", "library"],
)
def test_every_kernel_of_a_step_has_its_role(
    layer: tuple[str, ...], roles: tuple[Role | None, ...]
) -> None:
    step = ("embed_rows", *layer, *layer, "head_stream", "pick_tokens")
    assert list(kernel_roles(2 * step)) == 2 * [None, *roles, *roles, Role.HEAD, None]


def test_the_named_kernels_exist() -> None:
    """A kernel that is renamed must be renamed in the ruler too."""
    source = "\n".join(path.read_text() for path in (ROOT / "kernels").rglob("*.py"))
    for name in (*KERNEL_ROLES, "linear_row", *PRODUCTS):
        assert f"\ndef {name}(" in source, name


@pytest.mark.parametrize("is_joined", [False, True])
def test_parts_of_a_fused_step_are_set_against_the_bandwidth(is_joined: bool) -> None:
    attention = ("row_attention",) if is_joined else ("linear_row", "ring_attention")
    names = ["embed_rows", *attention, *PRODUCTS, "head_stream", "pick_tokens"]
    # Kernels start 4 µs apart and run 5: each waits 1 µs for the one before.
    work = [
        event("kernel", name, 100 * step + 4 * place, 5)
        for step in range(2)
        for place, name in enumerate(names)
    ]
    decoded = Decoded(2, "graph", context=257.0, bytes=dict.fromkeys(Role, 8e6))
    table = role_table(decoded, work, Bandwidth(4e12, 1, [1.0]))
    assert table is not None
    rows = {row["part"]: row for row in table.to_json()}
    head = {"part": "head", "kernels": ["head_stream"], "calls": 1, "bytes": 8e6}
    assert rows["head"] == {**head, "us": 4.0, "fraction": 0.5}
    assert ("attention in" in rows) != is_joined
    assert rows["attention, append"]["bytes"] == (16e6 if is_joined else 8e6)
    assert (rows["all else"]["us"], rows["all else"]["fraction"]) == (5.0 + 4.0, None)
    assert rows["step"]["bytes"] == 6 * 8e6
    assert role_table(decoded, [event("kernel", "gemm", 0, 5)], Bandwidth(4e12, 1, [])) is None


def test_a_window_lies_in_the_middle_of_its_requests_with_all_of_them_running(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.json.gz"
    decoded = decode_window(replace(WINDOW, steps=1000, trace=str(path)))
    shape = WINDOW.shape()
    steps = shape.new_tokens // 2
    assert (decoded.steps, decoded.decode) == (steps, "eager")
    assert decoded.context == pytest.approx(shape.mean_context, abs=2)
    operators = {entry.name: entry.calls for entry in read_traces(path)[0].work}
    # Two layers have five layer norms a step: there is nothing but these steps in the trace.
    assert operators["aten::native_layer_norm"] == steps * 5
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    assert read_traces(path.with_suffix(""))[0] == read_traces(path)[0]


def test_a_process_that_fails_is_said_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="random:nothing"):
        torch_trace(
            replace(WINDOW, engine={**TINY, "model": "random:nothing"}), tmp_path / "trace.json"
        )


def test_a_process_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "__init__.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setattr("asv_bench.explain.trace.LONGEST_S", 2.0)
    with pytest.raises(MeasurementFailed, match="process failed: it did not end within 2 s"):
        torch_trace(WINDOW, tmp_path / "trace.json", folder=tmp_path)


def test_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    arguments = ["--quick", "--steps", "3", "--device", "cpu", "--json", str(record)]
    done = CliRunner().invoke(build_app(), ["profile", *arguments, "--profile-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output + repr(done.exception)
    for words in (
        "Time per operator: decode=eager (3 steps)",
        "Tracing makes gaps longer",
        "aten::addmm",
    ):
        assert words in done.output
    assert (tmp_path / "scheduler-quick" / "torch.trace.json.gz").is_file()
    results = json.loads(record.read_text())["results"]
    assert (results["window"]["steps"], results["window"]["decode"]) == (3, "eager")
    norms = [one for one in results["summary"]["work"] if one["name"] == "aten::native_layer_norm"]
    assert [one["calls"] for one in norms] == [3 * 5]
