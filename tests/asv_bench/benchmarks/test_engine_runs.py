"""Runs of the engine that benchmarks take their figures from."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from asv_bench.benchmarks import engine_runs
from asv_bench.benchmarks.sharing import one_sample
from asv_bench.workloads import drive
from asv_bench.workloads.named import WORKLOADS
from asv_bench.workloads.run_sample import RequestTrace, RunSample


def test_an_engine_run_gives_consistent_figures(any_engine: Path) -> None:
    workload = WORKLOADS["streaming"].quick()
    measured = engine_runs.measure(workload, "gpt2-tiny")
    figures = {name: figure.value for name, figure in measured.items()}
    assert set(figures) == {
        "step_time",
        "seconds_per_token",
        *(f"{name}{p}" for name in ("ttft", "tpot", "itl") for p in ("", "_p95", "_p99")),
    }
    assert figures["ttft"] <= figures["ttft_p95"] <= figures["ttft_p99"]
    # A batch of 16 gives 16 tokens a step; the run also holds the prefill, so it takes longer.
    assert figures["seconds_per_token"] > 0.5 * figures["step_time"] / workload.resident
    assert figures["tpot"] == pytest.approx(figures["step_time"], rel=0.9)
    # All are of one run, the one that was disturbed least.
    steps = measured["step_time"].windows
    assert len(steps) == engine_runs.RUNS_ON_CPU
    least = steps.index(min(steps))
    assert all(figure.windows[least] == figure.value for figure in measured.values())


def sample_of(step_s: float, wall_s: float) -> RunSample:
    times = [step_s * step for step in range(1, 20)]
    trace = RequestTrace(0.0, token_ids=[1] * 19, token_times_s=times, finish_reason="length")
    return RunSample("offline", 0.0, wall_s, 18, [trace])


@pytest.mark.parametrize(
    ("wall_s", "runs"), [(0.001, 12), (0.08, 12), (0.2, 5), (0.35, 3), (100.0, 3)]
)
def test_on_a_gpu_the_median_of_as_many_runs_as_there_is_time_for_is_kept(
    wall_s: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [0.9, 0.2, 0.1, 0.3, 0.4, *(0.2 + 0.01 * turn for turn in range(20))]
    coming = iter(steps)
    monkeypatch.setattr(engine_runs, "warm_engine", lambda *_: None)
    monkeypatch.setattr(engine_runs, "read_bandwidth", lambda _: None)
    monkeypatch.setattr(drive, "run_workload", lambda *_: sample_of(next(coming), wall_s))
    monkeypatch.setenv("KVTRAIL_TRIAL", "1")
    assert len(engine_runs.measure(WORKLOADS["scheduler"], "gpt2")["step_time"].windows) == 1
    monkeypatch.delenv("KVTRAIL_TRIAL")
    coming = iter(steps)
    figure = engine_runs.measure(WORKLOADS["scheduler"], "gpt2")["step_time"]
    assert figure.windows == pytest.approx(steps[:runs])
    assert figure.value == pytest.approx(statistics.median(steps[:runs]))
    # asv takes one sample of a process, and leaves the windows alone.
    sample = one_sample(figure)
    assert sample == {
        "samples": [figure.value],
        "number": 1,
        "windows": list(figure.windows),
    }


def test_an_engine_captures_no_prefill_that_its_workload_never_needs() -> None:
    named = ("scheduler", "streaming", "streaming-small", "wide", "single", "qwen3-8b-64", "mixed")
    needed = {name: engine_runs.prefill_tokens(WORKLOADS[name]) for name in named}
    assert needed == {
        "scheduler": 64,
        "streaming": 512,
        "streaming-small": 64,
        "wide": None,
        "single": 64,
        "qwen3-8b-64": 64 * 128,
        "mixed": None,
    }
