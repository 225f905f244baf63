"""Two ranks on CPUs give the tokens of one, whatever is asked of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from engine_cases import GREEDY, run_to_end, tokens_of

from engine import (
    ConfigError,
    DeviceError,
    Engine,
    EngineConfig,
    EngineStoppedError,
    SamplingParams,
)
from engine.worker import device

SAMPLED = [
    SamplingParams(max_new_tokens=20, ignore_eos=True, temperature=0.9, seed=seed, **more)
    for seed, more in enumerate([{}, {"top_k": 40}, {"top_p": 0.8}, {"top_k": 90, "top_p": 0.95}])
]


@dataclass(frozen=True, slots=True)
class Both:
    """The same engine on one rank and on several."""

    one: Engine
    spread: Engine


def make_both(model: str, ranks: int, **options: object) -> Both:
    """Prompts are prefilled in chunks, and the prefix cache keeps them."""
    options = {
        "model": model,
        "device": "cpu",
        "block_size": 16,
        "prefill_max_tokens": 90,
    } | options
    return Both(
        Engine(EngineConfig(**options)),
        Engine(EngineConfig(**options, tensor_parallel_size=ranks)),
    )


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    made = make_both("random:gpt2-tiny", 2, num_kv_blocks=90)
    yield made
    made.spread.close()


def assert_same_tokens(both: Both, prompts: list[list[int]]) -> None:
    """Greedy and sampled, alone and beside each other, with a cold cache and a warm one."""
    params = [(GREEDY, *SAMPLED)[place % 5] for place in range(len(prompts))]
    for _ in range(2):
        expected, found = (
            [completion.token_ids for completion in engine.generate(prompts, params)]
            for engine in (both.one, both.spread)
        )
        assert found == expected
    assert both.spread.load.num_cached_tokens == both.one.load.num_cached_tokens > 0
    both.spread.check_integrity()


def test_tokens_are_those_of_one_rank(both, prompts, greedy_alone):
    assert tokens_of(both.spread, prompts) == greedy_alone
    tokens_of(both.one, prompts)
    assert_same_tokens(both, prompts)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "ranks", "options"),
    [
        ("random:gpt2-tiny", 4, {}),
        ("random:llama-tiny", 2, {"prefix_cache": False, "decode_first": True}),
        ("random:llama-tiny", 4, {"max_batch_size": 3}),
        ("random:qwen3-tiny", 2, {"num_kv_blocks": 20}),
        ("random:gemma-tiny", 2, {}),
        ("random:gemma-tiny", 4, {"kv_cache_dtype": "fp8"}),
        ("random:llama-tiny", 2, {"kv_cache_dtype": "fp8"}),
    ],
)
def test_families_give_the_tokens_of_one_rank(model, ranks, options, prompts):
    made = make_both(model, ranks, **options)
    try:
        params = [(GREEDY, *SAMPLED)[place % 5] for place in range(len(prompts))]
        expected, found = (
            [completion.token_ids for completion in engine.generate(prompts, params)]
            for engine in (made.one, made.spread)
        )
        assert found == expected
        assert len({tuple(tokens) for tokens in found}) > 8
    finally:
        made.spread.close()


def test_what_asks_more_of_its_logits_gets_what_one_rank_gives(both, prompts):
    params = [
        SamplingParams(max_new_tokens=20, logprobs=3, ignore_eos=True),
        SamplingParams(max_new_tokens=20, repetition_penalty=1.7, frequency_penalty=0.5),
        SamplingParams(max_new_tokens=20, temperature=1.2, seed=5, min_p=0.02, logprobs=0),
        SamplingParams(max_new_tokens=20, min_new_tokens=15, stop_token_ids=(5, 9)),
        GREEDY,
    ]
    expected, found = (engine.generate(prompts[3:8], params) for engine in (both.one, both.spread))
    for own, other in zip(found, expected, strict=True):
        assert own.token_ids == other.token_ids
        assert (own.logprobs is None) == (other.logprobs is None)
        for one, another in zip(own.logprobs or [], other.logprobs or [], strict=True):
            assert one.logprob == pytest.approx(another.logprob, abs=1e-3)


def test_aborts_and_dropped_streams_leave_the_others_as_they_are(both, prompts, greedy_alone):
    engine = both.spread
    stream = engine.stream(prompts[8:10], GREEDY)
    ids = [engine.submit(prompt, GREEDY) for prompt in prompts[:6]]
    for _ in range(4):
        next(stream)
    engine.abort(ids[2])
    stream.close()
    events = run_to_end(engine)
    tokens = {one: [event.token_id for event in events if event.request_id == one] for one in ids}
    ends = {event.request_id: event.finish_reason for event in events if event.finish_reason}
    assert ends == {one: "abort" if one == ids[2] else "length" for one in ids}
    for place in (0, 1, 3, 4, 5):
        assert tokens[ids[place]][-8:] == greedy_alone[place][-8:]


def test_each_rank_says_what_it_holds(both):
    (one,) = both.one.rank_memory()
    first, second = both.spread.rank_memory()
    assert (first.rank, second.rank) == (0, 1)
    assert first.process == one.process == os.getpid() != second.process
    assert first.cache == second.cache
    assert first.cache == one.cache / 2
    assert one.weights / 2 < second.weights <= first.weights < one.weights
    assert min(first.peak, second.peak) > second.weights


def test_ranks_leave_traces_of_what_they_do_meanwhile(both, prompts, greedy_alone, tmp_path):
    for engine, names in ((both.one, []), (both.spread, ["rank-1.json"])):
        place = tmp_path / str(len(names)) / "traces"
        with engine.tracing_ranks(place):
            assert tokens_of(engine, prompts[:2]) == greedy_alone[:2]
        assert [one.name for one in place.iterdir()] == names
    events = json.loads((place / "rank-1.json").read_text())["traceEvents"]
    assert {"wait for rank 0", "gloo:all_gather", "aten::mm"} <= {one["name"] for one in events}


def test_signals_to_all_processes_leave_the_ranks_to_rank_0(both, prompts, greedy_alone):
    """As Ctrl-C at a terminal and the end of a service send them."""
    process = both.spread.rank_memory()[1].process
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    assert tokens_of(both.spread, prompts[:2]) == greedy_alone[:2]


def test_close_ends_the_ranks(prompts):
    engine = Engine(EngineConfig(device="cpu", tensor_parallel_size=2))
    first, second = engine.rank_memory()
    assert first.cache == second.cache == engine.num_kv_blocks * 64 * 2 * 2 * 2 * 32 * 4
    process = second.process
    engine.submit(prompts[0], GREEDY)
    engine.step()
    engine.close()
    engine.close()
    assert not os.path.exists(f"/proc/{process}")
    with pytest.raises(EngineStoppedError, match="it was closed"):
        engine.rank_memory()


def test_sizes_that_cannot_be_are_refused_before_any_rank_starts(monkeypatch):
    monkeypatch.setattr("engine.running.build.Ranks", None)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 3, .* use 1, 2 or 4"):
        Engine(EngineConfig(device="cpu", tensor_parallel_size=3))
    with pytest.raises(ConfigError, match="tensor_parallel_size is 0; it must be a whole number"):
        EngineConfig(tensor_parallel_size=0)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 2)
    first, second = (device.torch.device("cuda", place) for place in range(2))
    assert device.resolve_devices(first, 2) == (first, second)
    with pytest.raises(DeviceError, match="is 4, but this machine has 2 CUDA devices: use at most"):
        device.resolve_devices(first, 4)
    with pytest.raises(DeviceError, match="has 1 CUDA devices from cuda:1 on"):
        device.resolve_devices(second, 2)
