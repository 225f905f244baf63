"""What single benchmarks measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asv_bench.benchmarks import decode, engine_runs, host, host_growth, host_text, kernels
from asv_bench.benchmarks.sharing import samples_of
from asv_bench.lab.pretend_cuda import pretended_cuda
from engine import Engine, EngineConfig


def test_captures_are_timed_without_the_rest_of_an_engines_start(
    any_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def build_seconds(model: str, decode_mode: str) -> float:
        built.append(decode_mode)
        return {"graph": 2.5, "eager": 1.0}[decode_mode]

    monkeypatch.setattr(decode, "_build_seconds", build_seconds)
    assert decode.GraphCapture().track_time("gpt2") == samples_of(1.5)
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
            self._engine = Engine(config)
            self.submit, self.step = self._engine.submit, self._engine.step

        has_unfinished = property(lambda self: self._engine.has_unfinished)

    disturbed = itertools.cycle([3.0, 5.0, 2.0, 4.0])
    monkeypatch.setattr(engine_runs, "steady_step_s", lambda _sample: next(disturbed))
    with pretended_cuda():
        benchmark = host.HostShare()
        assert benchmark.track_step_time("gpt2-tiny", 4) == samples_of(2.0)
        (host_time,) = benchmark.track_host_time("gpt2-tiny", 4)["samples"]
        assert 0 < host_time < 10
        assert set(host._measure_host("gpt2-tiny", 4)) > {"host_time", "host_time_in_columns"}
        monkeypatch.setattr("engine.Engine", OlderEngine)
        assert set(host._measure_host("gpt2-tiny", 4)) == {"host_time", "step_time"}


def test_decode_runs_around_its_context_within_gpt2s_length() -> None:
    for batch, context in itertools.product(*decode.Decode.params[1:]):
        workload = decode.decode_workload(batch, context)
        assert (workload.mean_context, workload.resident) == (context, batch)
        assert min(workload.prompt_lengths) >= 1
        assert workload.max_length <= 1024
        assert workload.new_tokens >= 200


CHEAP = [
    *((host.AppendBookkeeping, "track_append", way, 8) for way in ("one_by_one", "batch", "array")),
    (host.BlockMetadata, "track_hold_and_release", 8),
    (host.BlockTables, "track_build", 8),
    (host.BlockTables, "track_copy_on_write", 8),
    (host.EngineStep, "track_step_time", 8),
    (host.EngineStep, "track_boundary_step", 8),
    (host.Startup, "track_first_token"),
    (host_growth.AbortOfWaiting, "track_abort", 500),
    (host_growth.BlockedPrompt, "track_step", 80),
    (host_growth.LateRequest, "track_step", 64),
    (host_growth.ManyStreams, "track_step", 1),
    (host_growth.StopIdsOfOthers, "track_step", 51_200),
    (host_text.TextStreams, "track_time", "words", 256),
    (host_text.TextStreams, "track_time", "invalid_bytes", 256),
    *((kernels.Append, "track_time", kind, "cpu-small") for kind in kernels.Append.params[0]),
    (kernels.DecodeAttention, "track_time", "cpu-small"),
    (kernels.PrefillAttention, "track_time", "cpu-small"),
]


@pytest.mark.parametrize("case", CHEAP, ids=lambda case: "-".join(map(str, case[1:])))
def test_a_benchmark_gives_samples_of(
    any_engine: Path, on_gpu: Callable[[bool], None], case: tuple[Any, ...]
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
