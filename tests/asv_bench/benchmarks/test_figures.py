"""What single benchmarks measure, the runs that their figures come from, and whose engine that is.

A benchmark measures the engine of the commit that it is filed under.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asv_runner.benchmarks.mark import SkipNotImplemented
from fake_engine import FakeClock, FakeEngine
from toy_project import ROOT

from asv_bench.benchmarks import decode, host, kernels, sharing
from asv_bench.benchmarks.host import host_timed
from asv_bench.benchmarks.sharing import Figures, SharesRuns, WrongEngineError, samples_of, shared
from asv_bench.lab.pretend_cuda import pretended_cuda
from asv_bench.process.environment import borrowed_paths
from asv_bench.workloads import drive
from asv_bench.workloads.drive import RequestTrace, RunSample
from asv_bench.workloads.named import WORKLOADS
from engine import Engine, EngineConfig, SamplingParams


def test_captures_are_timed_without_the_rest_of_an_engines_start(
    any_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build_seconds(model: str, decode_mode: str) -> float:
        built.append(decode_mode)
        return {"graph": 2.5, "eager": 1.0}[decode_mode]

    with monkeypatch.context() as patched:
        patched.setattr(decode, "_build_seconds", build_seconds)
        assert decode.GraphCapture().track_time("gpt2") == samples_of(1.5)
    assert built[0] == "graph", "the first builds compile, and are not timed"
    with pretended_cuda():
        assert decode._build_seconds("gpt2-tiny", "graph") > 0


@pytest.mark.thorough
def test_the_hosts_share_is_timed_with_and_without_an_object_for_each_token(
    any_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OlderEngine:
        """Has events only."""

        def __init__(self, config: EngineConfig) -> None:
            self._engine = Engine(config)
            self.submit, self.step = self._engine.submit, self._engine.step

        has_unfinished = property(lambda self: self._engine.has_unfinished)

    disturbed = itertools.cycle([3.0, 5.0, 2.0, 4.0])
    monkeypatch.setattr(sharing, "steady_step_s", lambda _sample: next(disturbed))
    with pretended_cuda():
        benchmark = host.HostShare()
        assert benchmark.track_step_time("gpt2-tiny", 4)["samples"] == [2.0]
        (host_time,) = benchmark.track_host_time("gpt2-tiny", 4)["samples"]
        assert 0 < host_time < 10
        assert set(benchmark.run("gpt2-tiny", 4)) > {"host_time", "host_time_in_columns"}
        monkeypatch.setattr("engine.Engine", OlderEngine)
        assert set(benchmark.run("gpt2-tiny", 4)) == {"host_time", "step_time"}


CHEAP = [
    *((host.AppendBookkeeping, "track_append", way, 8) for way in ("one_by_one", "batch", "array")),
    (host.BlockMetadata, "track_hold_and_release", 8),
    (host.BlockTables, "track_build", 8),
    (host.BlockTables, "track_copy_on_write", 8),
    (host.EngineStep, "track_step_time", 8),
    (host.EngineStep, "track_boundary_step", 8),
    (host.Startup, "track_first_token"),
    *((kernels.Append, "track_time", kind, "cpu-small") for kind in kernels.Append.params[0]),
    (kernels.DecodeAttention, "track_time", "cpu-small"),
    (kernels.PrefillAttention, "track_time", "cpu-small"),
]


@pytest.mark.parametrize("case", CHEAP, ids=lambda case: "-".join(map(str, case[1:])))
def test_a_benchmark_gives_samples_of(
    any_engine: None, on_gpu: Callable[[bool], None], case: tuple[Any, ...]
) -> None:
    on_gpu(False)
    benchmark, method, *params = case
    instance = benchmark()
    instance.setup(*params)
    result = getattr(instance, method)(*params)
    assert result["number"] == 1
    (sample,) = result["samples"]
    assert 0 < sample < 10


def test_all_ways_to_append_do_the_same_bookkeeping() -> None:
    batch, fills = 8, []
    for way in ("one_by_one", "batch", "array"):
        benchmark = host.AppendBookkeeping()
        benchmark.prepare(way, batch)
        for _ in range(70):
            benchmark.append()
        fills.append(sorted(benchmark.blocks.fill_levels.tolist(), reverse=True)[: 2 * batch])
    assert fills[0] == fills[1] == fills[2] == [64] * batch + [6] * batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(host, "time", clock)
    return clock


def delivered(engine: FakeEngine, *tokens: int) -> list[int]:
    """Run requests of so many tokens; how many events each step delivers."""
    for count in tokens:
        engine.submit([1], SamplingParams(max_new_tokens=count))
    counts = []
    while engine.has_unfinished:
        counts.append(len(engine.step()))
    return counts


@pytest.mark.parametrize("owner", [torch.cuda.Event, torch.cuda.Stream, torch.cuda])
def test_waits_are_no_work_of_the_host(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, owner: object
) -> None:
    monkeypatch.setattr(owner, "synchronize", lambda *_: clock.sleep(7.0))
    waiting = owner.synchronize

    class WaitingEngine(FakeEngine):
        def step(self):
            owner.synchronize()
            return super().step()

    engine = WaitingEngine(clock, step_s=0.25)
    with host_timed(engine, 3) as steps:
        delivered(engine, 4, 4, 4)
    assert clock.slept == [7.0] * 4
    assert steps == [0.25] * 4
    # What was patched is whole again.
    assert owner.synchronize is waiting


def test_the_events_of_columns_are_made_off_the_clock(clock: FakeClock) -> None:
    class LazyBatch:
        def __init__(self, events):
            self._events = events

        def events(self):
            clock.sleep(50.0)
            return self._events

    class BatchEngine(FakeEngine):
        def step_batches(self):
            return [LazyBatch(super().step()), LazyBatch([])]

    engine = BatchEngine(clock, step_s=0.5)
    with host_timed(engine, 3, in_columns=True) as steps:
        assert delivered(engine, 2, 3, 3) == [3, 3, 2]
    # Only steps of the whole batch count.
    assert steps == [0.5, 0.5]


class Shared(SharesRuns, batch=[8]):
    """Counts its runs."""

    made = 0

    def run(self, batch: int) -> Figures:
        Shared.made += 1
        return {"ttft": Shared.made, "tpot": 10 * Shared.made}

    track_ttft, track_tpot = shared("ttft", ""), shared("tpot", "")
    track_time_over_floor = shared("time_over_floor", "")


def test_a_run_is_shared_by_figures_and_made_again_for_the_same_one(any_engine: None) -> None:
    def taken(figure: str, batch: int = 8) -> float:
        said = getattr(Shared(), f"track_{figure}")(batch)
        assert said["run"] == f"Shared-{batch}"
        value: float = said["samples"][0]
        return value

    assert [taken("ttft"), taken("tpot")] == [1, 10]
    assert [taken("ttft"), taken("tpot")] == [2, 20]
    assert [taken("tpot"), taken("ttft")] == [30, 3]
    assert taken("tpot", 64) == 40
    # Of what is raised after setup, asv takes only this for a skip, the rest for a failure.
    with pytest.raises(SkipNotImplemented, match="no time_over_floor on this machine"):
        taken("time_over_floor")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_figure_that_is_none_is_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="no time or ratio"):
        samples_of(value)


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


def test_the_host_lends_no_checkout_of_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout, packages = tmp_path / "checkout", tmp_path / "site-packages"
    (checkout / "asv_bench").mkdir(parents=True)
    (checkout / "asv_bench" / "__main__.py").write_text("")
    packages.mkdir()
    standard = sysconfig.get_path("stdlib")
    entries = [str(checkout), str(packages), str(tmp_path / "missing"), standard]
    monkeypatch.setattr(sys, "path", entries)
    assert borrowed_paths() == [str(packages)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What a life of commit "c"*40 is told; returns that commit's checkout."""
    checkout = tmp_path.resolve() / "checkout"
    for package in ("engine", "kernels"):
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text("")
        monkeypatch.delitem(sys.modules, package, raising=False)
    (checkout / "COMMIT").write_text("c" * 40 + "\n")
    monkeypatch.setenv("KVTRAIL_TREE", str(checkout))
    monkeypatch.setenv("KVTRAIL_LABEL", "c" * 40)
    monkeypatch.syspath_prepend(str(checkout))
    return checkout


@contextmanager
def refused(why: str) -> Iterator[pytest.MonkeyPatch]:
    """What is changed inside is refused, and then undone."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
        with pytest.raises(WrongEngineError, match=why):
            sharing.check_identity()


def test_the_guard_accepts_the_commit_under_test_and_nothing_else(
    environment: Path, tmp_path: Path
) -> None:
    sharing.check_identity()
    for variable in ("KVTRAIL_TREE", "KVTRAIL_LABEL"):
        with refused("Measure it with") as outside:
            outside.delenv(variable)
    with refused("gone holds no commit") as other:
        other.setenv("KVTRAIL_TREE", str(tmp_path / "gone"))
    with refused("/elsewhere/engine") as imported:
        impostor = type(sys)("engine")
        impostor.__file__ = "/elsewhere/engine/__init__.py"
        imported.setitem(sys.modules, "engine", impostor)
    with refused("installed/engine, not from the checkout") as installed:
        elsewhere = tmp_path / "installed"
        (elsewhere / "engine").mkdir(parents=True)
        (elsewhere / "engine" / "__init__.py").write_text("")
        installed.syspath_prepend(str(elsewhere))
    with refused("holds eeeeeeee"):
        (environment / "COMMIT").write_text("e" * 40)


def test_a_commit_without_kernels_skips_even_where_a_namesake_is_installed(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesake = tmp_path / "site-packages"
    (namesake / "kernels").mkdir(parents=True)
    (namesake / "kernels" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(namesake)])
    (environment / "kernels" / "__init__.py").unlink()
    (environment / "kernels").rmdir()
    with pytest.raises(SkipNotImplemented, match="no 'kernels' package"):
        sharing.check_identity()
