"""Runs of the engine that benchmarks take their figures from, and parts of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_project import ROOT

from asv_bench.benchmarks import sharing
from asv_bench.workloads import drive
from asv_bench.workloads.drive import RequestTrace, RunSample
from asv_bench.workloads.named import WORKLOADS


def test_an_engine_run_gives_consistent_figures(any_engine: None) -> None:
    workload = WORKLOADS["streaming"].quick()
    measured = sharing.measure(workload, "gpt2-tiny")
    figures = {name: value for name, figure in measured.items() for value in figure["samples"]}
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
    steps = measured["step_time"]["windows"]
    assert len(steps) == sharing.RUNS_ON_CPU
    least = steps.index(min(steps))
    assert all(figure["windows"][least] == figures[name] for name, figure in measured.items())


def sample_of(step_s: float, wall_s: float) -> RunSample:
    times = [step_s * step for step in range(1, 20)]
    trace = RequestTrace(0.0, token_ids=[1] * 19, token_times_s=times, finish_reason="length")
    return RunSample("offline", 0.0, wall_s, 18, [trace])


@pytest.mark.parametrize(("wall_s", "runs"), [(0.08, 12), (0.2, 5), (100.0, 3)])
def test_on_a_gpu_the_median_of_as_many_runs_as_there_is_time_for_is_kept(
    wall_s: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [0.9, 0.2, 0.1, 0.3, 0.4, *(0.2 + 0.01 * turn for turn in range(20))]
    coming = iter(steps)
    monkeypatch.setattr(sharing, "warm_engine", lambda *_: None)
    monkeypatch.setattr(sharing, "read_bandwidth", lambda _: None)
    monkeypatch.setattr(drive, "run_workload", lambda *_: sample_of(next(coming), wall_s))
    monkeypatch.setenv("KVTRAIL_TRIAL", "1")
    assert len(sharing.measure(WORKLOADS["scheduler"], "gpt2")["step_time"]["windows"]) == 1
    monkeypatch.delenv("KVTRAIL_TRIAL")
    coming = iter(steps)
    figure = sharing.measure(WORKLOADS["scheduler"], "gpt2")["step_time"]
    assert figure["windows"] == pytest.approx(steps[:runs])
    # asv takes one sample of a process, and leaves the windows alone.
    assert figure["samples"] == [pytest.approx(statistics.median(steps[:runs]))]


def step_of(*requests: list[float]) -> float:
    traces = [RequestTrace(0.0, [1] * len(times), times, "length") for times in requests]
    return sharing.steady_step_s(RunSample("offline", 0.0, 100.0, 50, traces))


def test_step_time_is_read_while_all_requests_decode_however_tokens_are_bunched() -> None:
    # Steps take 1 s alone and 2 s together, from t = 200 to t = 240.
    alone = [float(t) for t in range(200)]
    together = [200.0 + 2 * step for step in range(21)]
    second = together + [240.0 + step for step in range(1, 200)]
    assert step_of(alone + together, second) == pytest.approx(2.0)
    # Tokens handed out eight at a time.
    assert step_of([0.5 * (8 * (step // 8) + 7) for step in range(64)]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="fewer than 8 steps"):
        step_of([0.0, 1.0, 2.0], [50.0, 51.0])


def test_two_processes_make_engines_at_once_and_then_take_turns_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    turns = SimpleNamespace(
        are_shared=True, wait=lambda: said.append("wait"), pass_on=lambda: said.append("pass on")
    )

    def run_workload(*_: Any) -> RunSample:
        said.append("run")
        return sample_of(1.0, 2.0)

    monkeypatch.setattr(sharing, "own_turns", lambda: turns)
    monkeypatch.setattr(drive, "run_workload", run_workload)
    monkeypatch.setattr(sharing, "warm_engine", lambda *_: said.append("make"))
    sharing.windowed(None, "gpt2-tiny", lambda run: {"step_time": 1.0})
    assert said == ["make", "wait", *["pass on", "wait", "run"] * 5, "pass on"]


@pytest.mark.parametrize("module", ["__init__", "kv_blocks"])
def test_the_block_manager_is_found_where_the_commit_has_it(module: str, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    for name, text in {"__init__": "", module: "class KVBlockManager: pass\n"}.items():
        (tmp_path / "engine" / f"{name}.py").write_text(text)
    code = (
        "import asv_bench.benchmarks.sharing as runs, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "print(runs.block_manager().__module__)\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert said == ("engine\n" if module == "__init__" else "engine.kv_blocks\n")
