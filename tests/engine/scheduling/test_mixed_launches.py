"""Prompts that share launches with decode steps: the same tokens, in fewer launches."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from engine import Completion, ConfigError, Engine, EngineConfig, SamplingParams
from engine.running.step_loop import most_in_flight
from engine.transport.token_slots import TokenSlots
from engine.worker.worker import shared_tokens

MODELS = ["random:gpt2-tiny", "random:llama-tiny", "random:qwen3-tiny", "random:gemma-tiny"]
LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)


def _engine(mixed: int, **options: object) -> Engine:
    defaults = {
        "model": "random:qwen3-tiny",
        "device": "cpu",
        "block_size": 16,
        "max_batch_size": 12,
    }
    return Engine(EngineConfig(**{**defaults, **options}, mixed_prefill_tokens=mixed))


def _prompts(count: int) -> list[list[int]]:
    chance = random.Random(3)
    lengths = (1, 3, 9, 17, 33, 60, 120)
    return [[chance.randrange(900) for _ in range(chance.choice(lengths))] for _ in range(count)]


def _params(count: int) -> list[SamplingParams]:
    """Greedy, drawn and shaped, of very different lengths."""
    chance = random.Random(4)
    drawn = [{}, {}, {"temperature": 0.9}, {"temperature": 0.9, "top_k": 40}]
    shaped = [{}, {}, {"logprobs": 2}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.2}]
    return [
        SamplingParams(
            max_new_tokens=chance.choice((1, 2, 7, 20, 40)),
            ignore_eos=chance.random() < 0.5,
            seed=number,
            **chance.choice(drawn),
            **chance.choice(shaped),
        )
        for number in range(count)
    ]


def _run(engine: Engine, count: int) -> list[Completion]:
    return engine.generate(_prompts(count), _params(count))


def assert_alike(found: list[Completion], expected: list[Completion]) -> None:
    """The same tokens and ends, and logprobs but for rounding."""
    for one, other in zip(found, expected, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        likely, likely_there = (
            [token.logprob for token in each.logprobs or ()] for each in (one, other)
        )
        assert likely == pytest.approx(likely_there, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "random:gpt2-tiny"},
        {"model": "random:llama-tiny", "prefix_cache": False},
        # Sequences are sent away and computed again.
        {"num_kv_blocks": 24},
        # Rows end on the device before the host sees it.
        {"steps_in_flight": 3},
        {"steps_in_flight": 8, "max_batch_size": 3},
        {"admission": "pack", "max_batch_size": 5},
        # Some launches have no room for a prompt beside the rows.
        {"prefill_max_tokens": 14},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_what_shares_a_launch(options):
    found = []
    for mixed in (0, 8, 64):
        engine = _engine(mixed, **options)
        found.append(_run(engine, 24))
        engine.check_integrity()
    assert_alike(found[1], found[0])
    assert_alike(found[2], found[0])


def _launches_of(engine: Engine) -> list[tuple[int, int]]:
    """Of each launch of prompts to come, its tokens of prompts, and rows that it feeds."""
    compute, launches = engine._loop.worker.compute, []

    def noted(plan):
        launches.append((plan.num_tokens - plan.num_fed, plan.num_fed))
        return compute(plan)

    engine._loop.worker.compute = noted
    return launches


def _steps_until_first(engine: Engine, prompt: list[int], others: int) -> tuple[int, list[int]]:
    """Steps until a newcomer has its first token, and the tokens that each gave the others."""
    for number in range(others):
        engine.submit([1 + number] * 4, LONG)
    while len(engine.step()) < others:
        pass
    newcomer = engine.submit(prompt, LONG)
    given = []
    while True:
        events = engine.step()
        given.append(sum(event.request_id != newcomer for event in events))
        if any(event.request_id == newcomer for event in events):
            return len(given), given


@pytest.mark.parametrize("model", MODELS)
def test_who_runs_goes_on_while_a_long_prompt_is_computed(model):
    """In pieces, each in a launch of as many tokens as asked for with a step of the others."""
    engine = _engine(16, model=model)
    launches = _launches_of(engine)
    steps, given = _steps_until_first(engine, list(range(1, 61)), others=3)
    assert launches[-5:] == [(13, 3), (13, 3), (13, 3), (13, 3), (8, 3)]
    assert steps == 5
    assert given == [3, 3, 3, 3, 3]


def test_half_of_a_launch_at_least_is_of_prompts():
    engine = _engine(4)
    launches = _launches_of(engine)
    _steps_until_first(engine, list(range(1, 21)), others=10)
    assert launches[-6:-1] == [(2, 10)] * 5


def test_prompts_that_fill_a_launch_take_one():
    engine = _engine(20, prefill_max_tokens=200, max_batch_size=8)
    launches = _launches_of(engine)
    engine.generate([[number + 1] * 50 for number in range(8)], LONG)
    assert launches == [(200, 0), (196, 4), (4, 7)]


def test_prompts_that_find_no_row_do_not_make_launches_larger():
    engine = _engine(20, prefill_max_tokens=100, max_batch_size=2)
    launches = _launches_of(engine)
    params = [SamplingParams(max_new_tokens=count, ignore_eos=True) for count in (2, 40, 5, 5, 5)]
    engine.generate([[number + 1] * 45 for number in range(5)], params)
    assert max(launches) == (40, 0)
    assert launches[-3:] == [(19, 1), (19, 1), (7, 1)]


def _just_after_an_end(monkeypatch, mixed: int, others: int) -> tuple[Engine, list[object]]:
    """An engine that runs others on, and what grows with each of its decode steps from now on.

    Its device lags as far as it may.
    """
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda slots, ticket: False)
    engine = _engine(mixed, steps_in_flight=1, max_batch_size=20)
    for number in range(others):
        engine.submit([1 + number] * 4, LONG)
    short = engine.submit([99] * 4, SamplingParams(max_new_tokens=5, ignore_eos=True))
    while not any(event.request_id == short and event.finish_reason for event in engine.step()):
        pass
    decode, steps = engine._loop.worker.decode, []

    def noted(plan):
        steps.append(plan)
        return decode(plan)

    engine._loop.worker.decode = noted
    return engine, steps


@pytest.mark.parametrize(
    ("mixed", "others", "between"), [(16, 3, 0), (0, 3, 1), (16, 17, 1)], ids=str
)
def test_a_prompt_sent_after_an_end_comes_before_another_step(monkeypatch, mixed, others, between):
    """Where few run and prompts share launches; its sender has needed a moment to answer."""
    engine, steps = _just_after_an_end(monkeypatch, mixed, others)
    launches = _launches_of(engine)
    assert len(engine.step()) == others
    assert (len(steps), len(launches)) == (between, 0)
    engine.submit([1] * 15, LONG)
    engine.step()
    assert (len(steps), len(launches)) == (between + (mixed == 0), 1)


def test_a_prompt_that_is_there_at_an_end_is_launched_at_once(monkeypatch):
    engine, _ = _just_after_an_end(monkeypatch, 16, 3)
    launches = _launches_of(engine)
    engine.submit([1] * 15, LONG)
    engine.step()
    assert launches == [(13, 3)]


def test_where_no_prompt_comes_after_an_end_steps_are_launched_ahead_again(monkeypatch):
    engine, steps = _just_after_an_end(monkeypatch, 16, 3)
    counts = []
    for _ in range(5):
        engine.step()
        counts.append(len(steps))
    assert counts == [0, 1, 2, 3, 4]


def test_with_shared_launches_one_is_ahead_of_the_host():
    found = [
        most_in_flight(EngineConfig(steps_in_flight=asked), device, are_shared=are_shared)
        for asked in (None, 2)
        for device in ("cuda", "cpu")
        for are_shared in (False, True)
    ]
    assert found == [3, 1, 0, 0, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "device", "gigabytes", "tokens"),
    [
        ({}, "cuda", 16, 0),
        ({"mixed_prefill_tokens": 64}, "cpu", 1, 64),
        ({"mixed_prefill_tokens": None}, "cuda", 16, 320),
        ({"mixed_prefill_tokens": None}, "cuda", 7, 0),
        ({"mixed_prefill_tokens": None}, "cpu", 16, 0),
        ({"mixed_prefill_tokens": None, "decode_first": True}, "cuda", 16, 0),
    ],
)
def test_launches_are_shared_by_default_where_steps_take_long(options, device, gigabytes, tokens):
    model = SimpleNamespace(device=torch.device(device), num_bytes=gigabytes * 10**9)
    assert shared_tokens(EngineConfig(**options), model) == tokens


@pytest.mark.thorough
def test_two_ranks_give_the_tokens_of_one():
    found = []
    for ranks in (1, 2):
        engine = _engine(16, tensor_parallel_size=ranks)
        found.append(_run(engine, 12))
        engine.close()
    assert_alike(found[1], found[0])


@pytest.mark.parametrize("tokens", [-1, 2.5, "many", 2**31])
def test_a_number_of_tokens_is_asked_for(tokens):
    with pytest.raises(ConfigError, match="mixed_prefill_tokens is"):
        EngineConfig(mixed_prefill_tokens=tokens)


def test_steps_are_launched_first_or_together():
    with pytest.raises(ConfigError, match="give one of them"):
        EngineConfig(mixed_prefill_tokens=64, decode_first=True)
