"""asv's benchmarks: what they export, what they skip, and that their figures mean what they say."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import json
import pkgutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented
from toy_project import ROOT

from asv_bench import benchmarks
from asv_bench.benchmarks import (
    counters,
    decode,
    engine_runs,
    host,
    host_growth,
    host_text,
    kernel_calls,
    kernels,
    sharing,
)
from asv_bench.benchmarks.guard import WrongEngineError
from asv_bench.benchmarks.sharing import SharesRuns, one_sample, shared, shared_figure, tracked
from asv_bench.errors import MeasurementFailed
from asv_bench.lab.counters.pretend_cuda import pretended_cuda
from asv_bench.workloads import drive
from asv_bench.workloads.named import WORKLOADS
from asv_bench.workloads.run_sample import RequestTrace, RunSample
from engine import Engine, EngineConfig

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
COMMIT = "c" * 40


@pytest.fixture
def any_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Benchmarks take whatever engine is imported, and share runs in a directory of the test."""
    for name in MODULES:
        module = importlib.import_module(f"asv_bench.benchmarks.{name}")
        if hasattr(module, "check_identity"):
            monkeypatch.setattr(module, "check_identity", lambda: COMMIT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Decides whether the benchmarks believe that there is a GPU."""

    def decide(answer: bool) -> None:
        for module in (engine_runs, kernel_calls):
            monkeypatch.setattr(module, "has_cuda_gpu", lambda: answer)

    return decide


@pytest.fixture(scope="module")
def discovered() -> dict[str, dict[str, Any]]:
    """What asv's own discovery exports, and whether that imported anything heavy."""
    code = (
        "import json, sys\n"
        "from asv_runner.discovery import disc_benchmarks, update_sys_path\n"
        f"root = {str(ROOT / 'asv_bench' / 'benchmarks')!r}\n"
        "update_sys_path(root)\n"
        "found = {b.name: {k: v for k, v in vars(b).items() if isinstance(v, (str, int, float,"
        " list))} for b in disc_benchmarks(root)}\n"
        "heavy = [name for name in ('torch', 'engine', 'kernels') if name in sys.modules]\n"
        "json.dump({'found': found, 'heavy': heavy, 'path': sys.path}, sys.stdout, default=str)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["heavy"] == [], "every process that only reads a figure would pay for these"
    assert str(ROOT) not in content["path"], "the working tree's engine could be imported"
    found: dict[str, dict[str, Any]] = content["found"]
    return found


def test_asv_finds_every_benchmark(discovered: dict[str, dict[str, Any]]) -> None:
    subjects = {name.rpartition(".")[0] for name in discovered}
    assert subjects == {
        "counters.Kernels",
        "counters.Steps",
        "decode.BucketPadding",
        "decode.Decode",
        "decode.GraphCapture",
        "host.AppendBookkeeping",
        "host.BlockMetadata",
        "host.BlockTables",
        "host.EngineStep",
        "host.GpuStartup",
        "host.HostShare",
        "host.Startup",
        "host_growth.AbortOfWaiting",
        "host_growth.BlockedPrompt",
        "host_growth.LateRequest",
        "host_growth.ManyStreams",
        "host_growth.StopIdsOfOthers",
        "host_text.TextStreams",
        "kernels.Append",
        "kernels.DecodeAttention",
        "kernels.PrefillAttention",
        "scheduler.Scheduler",
        "scheduler.Single",
        "scheduler.Wide",
        "streaming.Streaming",
        "streaming.StreamingLatency",
    }


def test_every_benchmark_says_what_asv_must_know(discovered: dict[str, dict[str, Any]]) -> None:
    for name, benchmark in discovered.items():
        assert benchmark["type"] == "track", name
        # Counters are the same in every process; times need twelve.
        is_exact = name.startswith("counters.")
        assert (benchmark["unit"] in ("seconds", "floors")) != is_exact, name
        assert benchmark["rounds"] == (1 if is_exact else 12), name
        # An explicit version: a reworded docstring must not start a new series.
        assert benchmark["version"] == "1", name
        assert benchmark["timeout"] >= 120, name
        assert len(benchmark["params"]) == len(benchmark["param_names"]), name


def test_parameters_are_the_same_on_every_machine(
    discovered: dict[str, dict[str, Any]], on_gpu: Callable[[bool], None]
) -> None:
    on_gpu(True)
    assert discovered["decode.Decode.track_step_time"]["params"] == [
        ["'gpt2-tiny'", "'gpt2'"],
        ["1", "8", "64", "256"],
        ["128", "512", "900"],
    ]
    assert decode.Decode.params == (["gpt2-tiny", "gpt2"], [1, 8, 64, 256], [128, 512, 900])


def test_each_machine_skips_the_others_parameters(
    any_engine: Path, on_gpu: Callable[[bool], None]
) -> None:
    def kept(benchmark: Any) -> list[tuple[Any, ...]]:
        combinations = []
        for params in itertools.product(*benchmark.params):
            try:
                benchmark().setup(*params)
            except SkipNotImplemented:
                continue
            combinations.append(params)
        return combinations

    on_gpu(False)
    assert {model for model, _, _ in kept(decode.Decode)} == {"gpt2-tiny"}
    assert ("gpt2-tiny", 64, 128) in kept(decode.Decode)
    assert ("gpt2-tiny", 256, 900) not in kept(decode.Decode)
    assert kept(kernels.DecodeAttention) == [("cpu-small",)]
    assert kept(decode.BucketPadding) == kept(host.HostShare) == kept(decode.GraphCapture) == []
    on_gpu(True)
    assert len(kept(decode.Decode)) == 12
    assert kept(host.HostShare) == [("gpt2", batch) for batch in (8, 64, 256)]
    assert len(kept(decode.BucketPadding)) == 5
    assert kept(decode.GraphCapture) == [("gpt2",)]
    assert {model for model, _, _ in kept(decode.Decode)} == {"gpt2"}
    assert {shape for _, shape in kept(kernels.Append)} == set(kernel_calls.SHAPES) - {"cpu-small"}


def test_captures_are_timed_without_the_rest_of_an_engines_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []

    def build_seconds(model: str, decode_mode: str) -> float:
        built.append(decode_mode)
        return {"graph": 2.5, "eager": 1.0}[decode_mode]

    monkeypatch.setattr(decode, "_build_seconds", build_seconds)
    assert decode.capture_seconds("gpt2") == 1.5
    assert built[0] == "graph", "the first builds compile, and are not timed"


def test_engines_are_built_as_captures_need_them() -> None:
    with pretended_cuda():
        assert decode._build_seconds("gpt2-tiny", "graph") > 0
        assert decode._build_seconds("gpt2-tiny", "eager") > 0


@pytest.mark.thorough
def test_the_hosts_share_is_timed_with_and_without_an_object_for_each_token(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OlderEngine:
        """Has events only."""

        def __init__(self, config: EngineConfig) -> None:
            engine = Engine(config)
            self.submit, self.step = engine.submit, engine.step
            self._is_busy = lambda: engine.has_unfinished

        @property
        def has_unfinished(self) -> bool:
            return self._is_busy()

    disturbed = itertools.cycle([3.0, 5.0, 2.0, 4.0])
    monkeypatch.setattr(host, "steady_step_s", lambda _sample: next(disturbed))
    with pretended_cuda():
        figures = host._measure_host("gpt2-tiny", 4)
        assert figures["step_time"] == 2.0
        monkeypatch.setattr("engine.Engine", OlderEngine)
        older = host._measure_host("gpt2-tiny", 4)
    monkeypatch.setattr(host, "_measure_host", lambda _model, _batch: figures)
    benchmark = host.HostShare()
    assert benchmark.track_host_time("gpt2", 4) == one_sample(figures["host_time"])
    assert benchmark.track_step_time("gpt2", 4) == one_sample(figures["step_time"])
    in_columns = one_sample(figures["host_time_in_columns"])
    assert benchmark.track_host_time_in_columns("gpt2", 4) == in_columns
    assert set(older) == {"host_time", "step_time"}


@pytest.mark.parametrize(
    ("batch", "context"), list(itertools.product([1, 8, 64, 256], [128, 512, 900]))
)
def test_decode_runs_around_its_context_within_gpt2s_length(batch: int, context: int) -> None:
    workload = decode.decode_workload(batch, context)
    assert workload.mean_context == context
    assert min(workload.prompt_lengths) >= 1
    assert workload.max_length <= 1024
    assert workload.new_tokens >= 200
    assert workload.resident == batch


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


CHEAP = [
    (host.AppendBookkeeping, "track_append", ("one_by_one", 8)),
    (host.AppendBookkeeping, "track_append", ("batch", 8)),
    (host.AppendBookkeeping, "track_append", ("array", 8)),
    (host.BlockMetadata, "track_hold_and_release", (8,)),
    (host.BlockTables, "track_build", (8,)),
    (host.BlockTables, "track_copy_on_write", (8,)),
    (host.EngineStep, "track_step_time", (8,)),
    (host.EngineStep, "track_boundary_step", (8,)),
    (host.Startup, "track_first_token", ()),
    (host_growth.AbortOfWaiting, "track_abort", (500,)),
    (host_growth.BlockedPrompt, "track_step", (80,)),
    (host_growth.LateRequest, "track_step", (64,)),
    (host_growth.ManyStreams, "track_step", (1,)),
    (host_growth.StopIdsOfOthers, "track_step", (51_200,)),
    (host_text.TextStreams, "track_time", ("words", 256)),
    (host_text.TextStreams, "track_time", ("invalid_bytes", 256)),
    (kernels.Append, "track_time", ("full_batch", "cpu-small")),
    (kernels.Append, "track_time", ("identity", "cpu-small")),
    (kernels.Append, "track_time", ("generic", "cpu-small")),
    (kernels.DecodeAttention, "track_time", ("cpu-small",)),
    (kernels.PrefillAttention, "track_time", ("cpu-small",)),
]


@pytest.mark.parametrize(
    ("benchmark", "method", "params"),
    CHEAP,
    ids=[f"{kind.__name__}-{method}-{params}" for kind, method, params in CHEAP],
)
def test_a_benchmark_gives_one_sample(
    any_engine: Path,
    on_gpu: Callable[[bool], None],
    benchmark: Any,
    method: str,
    params: tuple[Any, ...],
) -> None:
    on_gpu(False)
    instance = benchmark()
    instance.setup(*params)
    result = getattr(instance, method)(*params)
    assert result["number"] == 1
    (sample,) = result["samples"]
    assert 0 < sample < 10


def test_a_stream_of_text_costs_the_same_per_token_at_any_length(any_engine: Path) -> None:
    """Both lengths take longer than a slice of time on a busy machine."""

    def seconds(content: str, tokens: int) -> float:
        benchmark = host_text.TextStreams()
        benchmark.setup(content, tokens)
        return float(benchmark.track_time(content, tokens)["samples"][0])

    for content in ("words", "invalid_bytes"):
        tries = (seconds(content, 4096) < 3 * seconds(content, 512) for _ in range(5))
        assert any(tries)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("operators", (100, 300)),
        ("launches", (0, 0)),
        ("copies", (0, 0)),
        ("new_tensors", (20, 90)),
    ],
)
def test_counters_are_per_step(
    any_engine: Path, figure: str, expected: tuple[float, float]
) -> None:
    instance = counters.Steps()
    instance.setup("cpu", 8)
    (value,) = getattr(instance, f"track_{figure}")("cpu", 8)["samples"]
    assert expected[0] <= value <= expected[1]


def test_counters_skip_an_engine_without_the_option(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass
    class OlderConfig:
        device: str = "cpu"
        dtype: str = "auto"
        decode: str = "auto"

    import engine

    monkeypatch.setattr(engine, "EngineConfig", OlderConfig)
    counters.Steps().setup("cpu", 8)
    counters.Steps().setup("graph", 8)
    for path in ("fused", "plain"):
        with pytest.raises(SkipNotImplemented, match="no option fuse"):
            counters.Steps().setup(path, 8)
    with pytest.raises(SkipNotImplemented, match="no option fuse"):
        counters.Kernels().setup()


def test_kernels_that_no_rule_names_are_skipped(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched_kernels(**_: object) -> NoReturn:
        raise MeasurementFailed("no rule names the kernel of_long_ago")

    monkeypatch.setattr("asv_bench.lab.codegen.launched_kernels.launched_kernels", launched_kernels)
    monkeypatch.setattr("asv_bench.lab.codegen.check.fresh_compiler", nullcontext)
    with pytest.raises(SkipNotImplemented, match="of_long_ago"):
        counters.Kernels().track_spills()


@pytest.mark.parametrize("batch", [1, 8])
def test_all_ways_to_append_do_the_same_bookkeeping(batch: int) -> None:
    from engine import KVBlockManager

    fills = []
    for way in ("one_by_one", "batch", "array"):
        blocks = KVBlockManager(4 * batch, 64)
        append = host._way_to_append(blocks, way, batch)
        for _ in range(70):
            append()
        fills.append(sorted(blocks.fill_levels.tolist(), reverse=True)[: 2 * batch])
    assert fills[0] == fills[1] == fills[2] == [64] * batch + [6] * batch


@pytest.mark.parametrize(
    "path", sorted(Path(benchmarks.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_what_is_not_measured_here_is_skipped_wherever_it_turns_out(path: Path) -> None:
    """In setup asv takes any `NotImplementedError` for a skip, after it only one of its own."""
    names = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "NotImplementedError" not in names


def test_a_figure_that_a_machine_does_not_have_is_skipped(any_engine: Path) -> None:
    # Of what is raised after setup, asv takes only this for a skip, the rest for a failure.
    with pytest.raises(SkipNotImplemented, match="no time_over_floor on this machine"):
        shared_figure("run", "time_over_floor", lambda: {"step_time": 1.0})


def test_a_run_is_shared_by_figures_and_made_again_for_the_same_one(any_engine: Path) -> None:
    runs = itertools.count(1)

    def measure() -> dict[str, float]:
        run = next(runs)
        return {"ttft": run, "tpot": 10 * run}

    def taken(figure: str) -> float:
        value: float = shared_figure("run", figure, measure)["samples"][0]
        return value

    assert [taken("ttft"), taken("tpot")] == [1, 10]
    assert [taken("ttft"), taken("tpot")] == [2, 20]
    assert [taken("tpot"), taken("ttft")] == [30, 3]


def test_runs_of_other_parameters_are_not_shared(any_engine: Path) -> None:
    assert shared_figure("run-8", "ttft", lambda: {"ttft": 1.0})["samples"] == [1.0]
    assert shared_figure("run-64", "ttft", lambda: {"ttft": 2.0})["samples"] == [2.0]


def test_a_run_of_another_commit_is_refused(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_figure("run", "ttft", lambda: {"ttft": 1.0, "tpot": 1.0})
    monkeypatch.setattr(sharing, "check_identity", lambda: "d" * 40)
    with pytest.raises(WrongEngineError, match="is of commit cccccccc, not of dddddddd"):
        shared_figure("run", "tpot", lambda: {"ttft": 1.0, "tpot": 1.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_figure_that_is_none_is_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="no time or ratio"):
        one_sample(value)


def test_a_tracked_method_keeps_its_attributes() -> None:
    class Tracked(SharesRuns):
        @tracked(unit="floors", version="3", rounds=5)
        def track_it(self) -> float:
            return 1.0

        track_other = shared("other", "Another one.", unit="calls", rounds=1)

    kept = ("unit", "version", "rounds")
    assert [getattr(Tracked.track_it, name) for name in kept] == ["floors", "3", 5]
    assert [getattr(Tracked.track_other, name) for name in kept] == ["calls", "1", 1]


def test_helpers_are_not_mistaken_for_benchmarks() -> None:
    module: ModuleType = sharing
    assert not [name for name in vars(module) if name.startswith(("track_", "time_", "Time"))]
