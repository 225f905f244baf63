"""The engine's public face: what goes in, what comes out, and what must not change it."""

from __future__ import annotations

import dataclasses
import math
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_cases import GREEDY, run_to_end, tokens_of

from engine import (
    ConfigError,
    Engine,
    QueueFullError,
    RequestError,
    SamplingParams,
    TooLongError,
)
from engine.transport.token_slots import TokenSlots


def test_completions_come_in_the_order_of_the_prompts(make_engine, prompts):
    completions = make_engine().generate(prompts, GREEDY)
    assert [completion.prompt_ids for completion in completions] == prompts
    assert all(len(completion.token_ids) == 20 for completion in completions)
    assert {completion.finish_reason for completion in completions} == {"length"}
    assert {completion.text for completion in completions} == {None}


def test_greedy_output_depends_on_the_prompt_and_varies(make_engine, prompts):
    outputs = tokens_of(make_engine(), prompts)
    assert len({tuple(output) for output in outputs}) == len(outputs)
    assert min(len(set(output)) for output in outputs) >= 5


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 1},
        {"max_batch_size": 5},
        {"prefix_cache": False},
        {"block_size": 64},
        {"block_size": 7},
        {"prefill_max_tokens": 13},
        {"prefill_max_batch_size": 2},
        {"max_active_requests": 3},
        {"max_inflight_requests": 2},
        {"decode_first": True},
        {"admission": "pack", "prefill_max_tokens": 70},
        {"num_kv_blocks": 14},
        {"num_kv_blocks": 14, "prefix_cache": False},
        {"num_kv_blocks": 14, "prefill_max_tokens": 13, "decode_first": True},
    ],
    ids=str,
)
def test_no_option_changes_the_tokens(make_engine, prompts, greedy_alone, options):
    engine = make_engine(**options)
    assert tokens_of(engine, prompts) == greedy_alone
    assert tokens_of(engine, prompts[::-1]) == greedy_alone[::-1]


def test_requests_that_join_and_leave_do_not_disturb_each_other(make_engine, prompts, greedy_alone):
    engine = make_engine(max_batch_size=4)
    outputs: dict[int, list[int]] = {}
    waiting = list(enumerate(prompts))
    ids: dict[int, int] = {}
    while waiting or engine.has_unfinished:
        if waiting:
            place, prompt = waiting.pop(0)
            ids[engine.submit(prompt, GREEDY)] = place
        for _ in range(3):
            for event in engine.step():
                outputs.setdefault(ids[event.request_id], []).append(event.token_id)
        engine.check_integrity()
    assert [outputs[place] for place in range(len(prompts))] == greedy_alone


def test_events_tell_each_token_once_in_order(make_engine, prompts, greedy_alone):
    engine = make_engine()
    ids = [engine.submit(prompt, GREEDY) for prompt in prompts]
    events = run_to_end(engine)
    for request_id, expected in zip(ids, greedy_alone, strict=True):
        own = [event for event in events if event.request_id == request_id]
        assert [event.token_id for event in own] == expected
        assert [event.index for event in own] == list(range(20))
        assert [event.finish_reason for event in own] == [None] * 19 + ["length"]
        assert all(a.time_s <= b.time_s for a, b in pairwise(own))


def test_timelines_hold_one_time_a_token(make_engine, prompts):
    for completion in make_engine().generate(prompts, GREEDY):
        timeline = completion.timeline
        assert len(timeline.token_times_s) == 20
        assert timeline.ttft_s > 0
        assert timeline.itl_s.shape == (19,)
        assert timeline.tpot_s == pytest.approx(timeline.itl_s.mean())
        assert timeline.latency_s == pytest.approx(timeline.ttft_s + timeline.itl_s.sum())


def test_timeline_of_too_few_tokens_is_not_a_number(make_engine):
    (completion,) = make_engine().generate([[1]], SamplingParams(max_new_tokens=1))
    assert math.isfinite(completion.timeline.ttft_s)
    assert math.isnan(completion.timeline.tpot_s)
    assert not len(completion.timeline.itl_s)


def test_a_stop_token_ends_the_request_and_is_part_of_the_output(make_engine, prompts):
    engine = make_engine()
    full = tokens_of(engine, [prompts[5]])[0]
    stop = full[7]
    first = full.index(stop)
    params = SamplingParams(max_new_tokens=20, stop_token_ids=(stop,), ignore_eos=True)
    (completion,) = engine.generate([prompts[5]], params)
    assert completion.token_ids == full[: first + 1]
    assert completion.finish_reason == "stop"


def test_eos_ends_the_request_unless_it_is_ignored(make_engine, prompts):
    engine = make_engine()
    full = tokens_of(engine, [prompts[6]])[0]
    eos = full[4]
    engine.model_config = dataclasses.replace(engine.model_config, eos_token_ids=(eos,))
    params = SamplingParams(max_new_tokens=20)
    (completion,) = engine.generate([prompts[6]], params)
    assert completion.token_ids == full[: full.index(eos) + 1]
    assert completion.finish_reason == "stop"
    assert tokens_of(engine, [prompts[6]])[0] == full


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_abort_frees_everything_the_request_held(make_engine, prompts, greedy_alone, num_steps):
    engine = make_engine(prefix_cache=False, prefill_max_tokens=150)
    doomed = engine.submit(prompts[-1], GREEDY)
    kept = engine.submit(prompts[4], GREEDY)
    events = []
    for _ in range(num_steps):
        events += engine.step()
    free_before = engine.block_manager.num_free_blocks
    engine.abort(doomed)
    if num_steps:
        assert engine.block_manager.num_free_blocks > free_before
    events += run_to_end(engine)
    last = [event for event in events if event.request_id == doomed][-1]
    assert (last.token_id, last.finish_reason) == (None, "abort")
    kept_tokens = [event.token_id for event in events if event.request_id == kept]
    assert kept_tokens == greedy_alone[4]
    assert engine.block_manager.num_free_blocks == engine.num_kv_blocks
    engine.abort(doomed)
    assert not engine.has_unfinished


def test_sampling_is_reproducible_alone_in_a_batch_and_after_preemption(
    make_engine, prompts, greedy_alone
):
    params = [
        SamplingParams(
            max_new_tokens=20, temperature=0.8, top_k=50, top_p=0.95, seed=i, ignore_eos=True
        )
        for i in range(len(prompts))
    ]
    single = make_engine(max_batch_size=1)
    alone = [tokens_of(single, [p], [one])[0] for p, one in zip(prompts, params, strict=True)]
    assert tokens_of(make_engine(), prompts, params) == alone
    assert tokens_of(make_engine(num_kv_blocks=14, prefix_cache=False), prompts, params) == alone
    mixed = [one if i % 2 else GREEDY for i, one in enumerate(params)]
    outputs = tokens_of(make_engine(), prompts, mixed)
    assert outputs[1::2] == alone[1::2]
    assert outputs[0::2] == greedy_alone[0::2]


def test_seeds_make_a_difference_and_the_engine_seed_stands_in_for_none(make_engine):
    params = SamplingParams(max_new_tokens=20, temperature=1.0, ignore_eos=True)
    first, second = tokens_of(make_engine(), [[5, 6], [5, 6]], params)
    assert first != second
    assert tokens_of(make_engine(), [[5, 6], [5, 6]], params) == [first, second]


def test_a_shared_prefix_is_computed_once(make_engine):
    engine = make_engine()
    computed = []
    forward = engine.model.forward
    engine.model.forward = lambda ids, *rest: computed.append(len(ids)) or forward(ids, *rest)
    prompt = np.random.default_rng(0).integers(0, 1000, 100).tolist()
    first = tokens_of(engine, [prompt])
    assert computed[0] == 100
    computed.clear()
    assert tokens_of(engine, [prompt]) == first
    assert computed[0] == 1
    computed.clear()
    tokens_of(engine, [[*prompt[:50], 7, 7, 7]])
    assert computed[0] == 3


def test_logits_that_are_not_numbers_end_the_request_with_an_error(make_engine):
    engine = make_engine()
    with torch.inference_mode():
        engine.model.position_embedding[3] = float("nan")
    good, bad = engine.generate([[1], [1, 2, 3]], SamplingParams(max_new_tokens=3))
    assert good.finish_reason == "length"
    assert (bad.finish_reason, bad.token_ids) == ("error", bad.token_ids[:1])
    events = list(engine.stream([[1, 2, 3, 4]], SamplingParams(max_new_tokens=5)))
    assert [(event.token_id, event.finish_reason) for event in events] == [(None, "error")]


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], None, "empty"),
        ([1, -1], None, "vocabulary"),
        ([1, 10**6], None, "vocabulary"),
        ([1, 2**40], None, "vocabulary"),
        ([1.5, 2.0], None, "whole numbers"),
        ([1, 2.5], None, "whole numbers"),
        ([1, [2]], None, "whole numbers"),
        ([[1, 2]], None, "flat sequence"),
        ([True, False], None, "whole numbers"),
        ([1, True], None, "whole numbers"),
        ((5, False), None, "whole numbers"),
        ([7] * 40 + [True], None, "whole numbers"),
        ([7] * 40 + [False, 7], None, "whole numbers"),
        ((7,) * 40 + (np.bool_(True),), None, "whole numbers"),
        ([1, "2"], None, "whole numbers"),
        (np.array([True]), None, "whole numbers"),
        (np.array(3), None, "flat sequence"),
        ([1, 2**70], None, "is not in the vocabulary"),
        ([1, -(2**70)], None, "is not in the vocabulary"),
        (np.array([2**63 + 1], np.uint64), None, "is not in the vocabulary"),
        (np.array([1, 10**6], object), None, "is not in the vocabulary"),
        (np.array([1, None], object), None, "whole numbers"),
        (np.array([1, True], object), None, "whole numbers"),
        (b"Hello", None, "token ids"),
        (None, None, "token ids"),
        ("Hello", None, "no tokenizer"),
        ([1] * 1020, SamplingParams(max_new_tokens=6), "beyond the 1024"),
        ([1], SamplingParams(max_new_tokens=1025), "beyond the 1024"),
        ([1] * 1025, SamplingParams(max_new_tokens=1), "beyond the 1024"),
        ([1], {"max_new_tokens": 3}, "SamplingParams"),
        ([1], SamplingParams(stop_token_ids=(10**6,)), "vocabulary"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_request_is_refused_in_a_sentence_and_changes_nothing(
    make_engine, prompt, params, words
):
    engine = make_engine()
    with pytest.raises(RequestError, match=words) as refusal:
        engine.submit(prompt, params)
    assert str(refusal.value).endswith(".")
    assert isinstance(refusal.value, TooLongError) == words.startswith("beyond")
    each = [SamplingParams(), params or SamplingParams()]
    with pytest.raises(RequestError, match=words):
        engine.generate([[1, 2], prompt], each)
    assert not engine.has_unfinished
    assert engine.submit([1]) == 0


@pytest.mark.parametrize("length", [1, 16, 17])
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_ids_run_to_the_end_of_the_vocabulary(make_engine, length, kind):
    engine = make_engine()
    last = engine.model_config.vocab_size - 1
    engine.submit(kind([last] * length))
    for beyond in (last + 1, -1):
        with pytest.raises(RequestError, match=f"^Token id {beyond} is not in the vocabulary"):
            engine.submit(kind([last] * (length - 1) + [beyond]))


def test_a_request_beyond_the_whole_cache_is_refused(make_engine):
    engine = make_engine(num_kv_blocks=4)
    with pytest.raises(RequestError, match="whole KV cache holds 64"):
        engine.submit([1] * 60, SamplingParams(max_new_tokens=6))
    for length in (60, 63, 64):
        params = SamplingParams(max_new_tokens=65 - length, ignore_eos=True)
        assert len(tokens_of(engine, [[1] * length], params)[0]) == 65 - length


@pytest.mark.parametrize(("steps_in_flight", "unseen"), [(0, 0), (1, 1), (3, 3), (8, 8), (None, 0)])
def test_steps_in_flight_are_launched_before_their_tokens_are_seen(
    make_engine, monkeypatch, greedy_alone, prompts, steps_in_flight, unseen
):
    # Tokens that are never there before they are waited for: a device that lags as far as it may.
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda slots, ticket: False)
    engine = make_engine(steps_in_flight=steps_in_flight)
    engine.submit(prompts[0], GREEDY)
    received = [len(engine.step()) for _ in range(12)]
    assert received == [0] * unseen + [1] * (12 - unseen)
    assert tokens_of(make_engine(steps_in_flight=steps_in_flight), prompts) == greedy_alone


def test_unknown_ids_and_full_queues_are_refused(make_engine):
    engine = make_engine(max_inflight_requests=2)
    for unknown in (0, -1, 1.0, [0]):
        with pytest.raises(RequestError, match="never submitted"):
            engine.abort(unknown)
    engine.submit([1])
    engine.submit([2])
    with pytest.raises(RequestError, match="Request True was never submitted"):
        engine.abort(True)
    with pytest.raises(QueueFullError, match="max_inflight_requests is 2"):
        engine.submit([3])
    run_to_end(engine)
    assert engine.submit([3]) == 2


def test_an_abort_costs_the_same_however_many_requests_wait(make_engine):
    """Newest first: the queue would be searched from its other end."""
    engine, seconds = make_engine(max_batch_size=1), []
    for num_waiting in (500, 500, 500, 16_000):
        ids = [engine.submit([1]) for _ in range(num_waiting)]
        started = time.process_time()
        for request_id in reversed(ids):
            engine.abort(request_id)
        seconds.append((time.process_time() - started) / num_waiting)
        assert engine.num_unfinished == 0
        assert len(engine.step()) == num_waiting
    assert seconds[-1] < 3 * min(seconds[:-1])


def test_ids_from_columns_can_be_aborted_before_and_after_the_end(make_engine, prompts):
    engine = make_engine()
    engine.submit(prompts[0], GREEDY)
    (batch,) = engine.step_batches()
    for _ in range(2):
        engine.abort(batch.request_ids[0])
    assert [event.finish_reason for event in run_to_end(engine)] == ["abort"]


def test_one_prompt_in_place_of_many_is_refused(make_engine):
    engine = make_engine()
    with pytest.raises(RequestError, match="prompts is None; it must be a sequence"):
        engine.generate(None)
    with pytest.raises(RequestError, match="params is 5; it must be SamplingParams"):
        engine.generate([[1]], 5)
    with pytest.raises(ConfigError, match=r"config is 'gpt2'; it must be an EngineConfig"):
        Engine("gpt2")
    with pytest.raises(RequestError, match="put it in a list"):
        engine.generate([1, 2, 3])
    with pytest.raises(RequestError, match="put it in a list"):
        engine.stream("Hello")
    with pytest.raises(RequestError, match="2 prompts, but 1 params"):
        engine.generate([[1], [2]], [GREEDY])
    assert engine.generate([]) == []


def test_a_completion_keeps_no_other_requests_output(make_engine):
    """Of requests that end together: who keeps one must not keep the memory of the batch."""
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    done = make_engine().generate([[1, 2], [3, 4], [5, 6]], params)
    assert all(one.timeline.token_times_s.base is None for one in done)
