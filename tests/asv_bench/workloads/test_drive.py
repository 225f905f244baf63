"""Metrics against timelines computed by hand, and how each mode feeds the engine."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_engine import FakeClock, FakeEngine

from asv_bench.errors import MeasurementFailed
from asv_bench.workloads import drive
from asv_bench.workloads.drive import RequestTrace, RunSample, run_requests, run_workload
from asv_bench.workloads.named import WORKLOADS, Workload
from engine import Engine, SamplingParams, Timeline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(drive, "time", clock)
    return clock


def trace(submitted: float, *times: float) -> RequestTrace:
    return RequestTrace(submitted, [5] * len(times), list(times), "length")


def params(*new_tokens: int) -> list[SamplingParams]:
    return [SamplingParams(max_new_tokens=count) for count in new_tokens]


def run(engine: FakeEngine, *new_tokens: int, **options: Any) -> RunSample:
    prompts: list[Any] = [[index] for index in range(len(new_tokens))]
    return run_requests(engine, prompts, params(*new_tokens), **options)


def test_latencies_of_a_request_are_those_of_the_engine() -> None:
    times = [10.5, 10.6, 10.9]
    request, theirs = trace(10.0, *times), Timeline(10.0, np.array(times))
    assert request.ttft_s == theirs.ttft_s == pytest.approx(0.5)
    assert request.tpot_s == theirs.tpot_s == pytest.approx(0.2)
    assert list(request.itl_s) == list(theirs.itl_s) == pytest.approx([0.1, 0.3])
    assert request.latency_s == pytest.approx(0.9)
    request = trace(1.0, 3.0)
    assert (request.ttft_s, request.itl_s.size) == (2.0, 0)
    assert math.isnan(request.tpot_s)


def test_figures_of_a_run() -> None:
    # Two requests overlap in decoding (1 to 5), a third decodes alone (8 to 10): 6 s of 12.
    sample = RunSample(
        mode="online",
        started_s=0.0,
        wall_s=12.0,
        decode_steps=3,
        traces=[trace(0.0, 1.0, 4.0), trace(0.0, 2.0, 3.0, 5.0), trace(6.0, 8.0, 10.0)],
    )
    assert sample.generated_tokens == 7
    assert sample.decode_s == pytest.approx(6.0)
    assert sample.decode_step_ms == pytest.approx(2000.0)
    assert sample.total_tokens_per_s == pytest.approx(7 / 12)
    assert sample.decode_tokens_per_s == pytest.approx(7 / 6)
    assert sample.of_requests("itl") == pytest.approx([3.0, 1.0, 2.0, 2.0])
    assert drive.latencies_ms([sample])["ttft_ms"]["p50"] == pytest.approx(2000.0)
    assert sample.step_ms(Workload("two", 4, 2, (1,), 3)) == pytest.approx(12000 / 6)


def test_percentiles_leave_out_what_is_not_a_number() -> None:
    summary = drive.summarize([float("nan"), *range(101)])
    assert summary == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert drive.summarize([float("nan")]) == dict.fromkeys(summary)


def test_offline_submits_everything_before_the_first_step(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    sample = run(engine, 3, 2, mode="offline")
    assert [moment for moment, _ in engine.submitted] == [100.0, 100.0]
    assert engine.steps == 3
    assert sample.wall_s == 3.0
    assert sample.decode_steps == 2
    assert [len(request.token_ids) for request in sample.traces] == [3, 2]
    assert sample.of_requests("ttft") == pytest.approx([1.0, 1.0])
    assert sample.traces[1].token_ids == [7007, 7008]
    # Steps are counted when one call reports several, too.
    sample = run(FakeEngine(clock, tokens_per_step=3), 9, 9, mode="offline")
    assert sample.decode_steps == 8
    assert sample.decode_step_ms == pytest.approx(1000.0)


def test_a_planted_delay_makes_every_step_longer(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRAIL_DELAY_S", "0.02")
    started = time.perf_counter()
    sample = run(FakeEngine(clock), 5)
    # Not how much longer: a busy machine may add any time.
    assert time.perf_counter() - started >= 5 * 0.02
    # The engine's clock is another one here: its own steps are as long as ever.
    assert sample.wall_s == 5


def test_on_a_gpu_a_delay_is_a_spin_before_each_step_in_the_engines_stream(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    streams: list[Any] = []
    event = SimpleNamespace(
        record=lambda stream: None, synchronize=lambda: None, elapsed_time=lambda other: 25.0
    )

    @contextlib.contextmanager
    def on_stream(stream: Any) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    replaced = {
        "_sleep": lambda cycles: done.append((*streams, cycles)),
        "stream": on_stream,
        "Event": lambda **_: event,
    }
    for name, stand_in in replaced.items():
        monkeypatch.setattr(torch.cuda, name, stand_in, raising=False)
    monkeypatch.setattr("engine.worker.device.engine_stream", lambda device: f"of {device}")

    class OnGPU(FakeEngine):
        device = torch.device("cuda", 0)

        def step(self) -> Any:
            done.append("step")
            return super().step()

    monkeypatch.setenv("KVTRAIL_DELAY_S", "0.000001")
    run(OnGPU(clock), 2)
    # Two gigahertz, measured once, after the clocks have come up.
    spin = ("of cuda:0", 2000)
    assert done[2:] == [spin, "step", spin, "step"]
    monkeypatch.delenv("KVTRAIL_DELAY_S")
    run(OnGPU(clock), 2)
    assert done[6:] == ["step", "step"]


def test_naive_runs_one_request_at_a_time(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    sample = run(engine, 3, 2, mode="naive")
    assert engine.most_running == 1
    assert sample.wall_s == 5.0
    assert sample.of_requests("ttft") == pytest.approx([1.0, 1.0])
    assert sample.decode_s == pytest.approx(2.0 + 1.0)


def test_online_submits_when_due_and_sleeps_while_there_is_nothing_to_do(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    sample = run(engine, 2, 2, 2, mode="online", due_s=[0.0, 1.5, 10.0])
    # The second falls due during the second step; the third finds the engine idle since 104.
    assert [moment for moment, _ in engine.submitted] == [100.0, 102.0, 110.0]
    assert clock.slept == [6.0]
    assert sample.wall_s == 12.0
    assert sample.of_requests("ttft") == pytest.approx([1.0, 1.0, 1.0])


def test_online_holds_back_beyond_the_inflight_limit(clock: FakeClock) -> None:
    engine = FakeEngine(clock)
    sample = run(engine, 2, 3, 1, 1, mode="online", max_inflight=2)
    assert engine.most_running == 2
    assert [moment for moment, _ in engine.submitted] == [100.0, 100.0, 102.0, 103.0]
    assert [len(request.token_ids) for request in sample.traces] == [2, 3, 1, 1]


def test_text_is_encoded_on_the_clock_of_its_request(clock: FakeClock) -> None:
    def encode(text: str) -> list[int]:
        clock.now += 4.0
        return [len(text)]

    engine = FakeEngine(clock)
    sample = run_requests(engine, ["abc"], params(1), mode="online", encode=encode)
    assert engine.submitted == [(104.0, [3])]
    assert sample.of_requests("ttft") == pytest.approx([5.0])


@pytest.mark.usefixtures("nothing_hidden")
def test_what_was_hidden_from_the_collector_stays_so(clock: FakeClock) -> None:
    run(FakeEngine(clock), 1)
    assert gc.get_freeze_count() == 0
    gc.freeze()
    hidden = gc.get_freeze_count()
    run(FakeEngine(clock), 1)
    assert gc.get_freeze_count() >= hidden


def test_failures_and_tokens_of_somebody_else_are_no_measurement(clock: FakeClock) -> None:
    with pytest.raises(MeasurementFailed, match="request 0 ended with 'error'"):
        run(FakeEngine(clock, last_reason="error"), 2)
    with pytest.raises(MeasurementFailed, match="did not submit"):
        run(FakeEngine(clock, foreign_events=True), 2)
    sample = run(FakeEngine(clock), 2, 3)
    with pytest.raises(MeasurementFailed, match="request 0 generated 2 of 3"):
        drive.require_complete(sample, Workload("three-each", 3, 3, (1,), 3))


def test_a_reader_gets_tokens_in_chunks_and_leaves_timings_alone(clock: FakeClock) -> None:
    stream = drive.StreamReader(2)
    sample = run(FakeEngine(clock), 5, consumer=stream.receive)
    # After 2, 4 and, at the end, 5 tokens of a second each.
    gaps = stream.gaps_ms()
    assert (gaps["max"], gaps["mean"]) == (2000.0, 1500.0)
    assert sample.of_requests("itl") == pytest.approx([1.0] * 4)


def test_a_real_engine_gives_the_same_tokens_in_every_mode() -> None:
    workload = WORKLOADS["streaming"].quick()
    engine = Engine(workload.engine_config("random:gpt2-tiny", device="cpu"))
    vocab_size = engine.model_config.vocab_size
    samples = [
        run_workload(engine, workload, vocab_size, mode=mode)
        for mode in ("naive", "online", "offline")
    ]
    completions = engine.generate(workload.prompts(vocab_size), workload.sampling_params())
    for sample in samples:
        assert [request.token_ids for request in sample.traces] == [
            completion.token_ids for completion in completions
        ]
        assert sample.generated_tokens == workload.num_requests * workload.new_tokens
        assert 0 < sample.decode_s < sample.wall_s
    # Prompts of one token take their first token, too, from a decode step.
    assert samples[1].decode_steps == workload.new_tokens
    assert samples[0].decode_steps == workload.num_requests * (workload.new_tokens - 1)
