"""Penalties, min_p, least lengths and logprobs: against their definitions, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_cases import run_to_end, tokens_of
from gpt2_checkpoints import logits_of
from speaking_checkpoints import save_speaking

from engine import Engine, EngineConfig, RequestError, SamplingParams
from engine.worker import shaper
from engine.worker.sampler import sample

PROMPTS = [[5, 9, 9, 14], [40, 41, 42, 43, 44, 45, 46], [7]]
COUNT = 24

SHAPED = {
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "frequency below 0": {"frequency_penalty": -0.5},
    "repetition": {"repetition_penalty": 1.7},
    "all": {"presence_penalty": 1, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    "sampled": {"temperature": 0.8, "seed": 3, "presence_penalty": 1.5, "top_p": 0.9},
    "min_p": {"temperature": 1.5, "seed": 5, "min_p": 0.1},
    "min_p and top_k": {"temperature": 1.5, "seed": 5, "min_p": 0.02, "top_k": 7},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_speaking(tmp_path_factory.mktemp("speaking"))


@pytest.fixture
def make(make_engine, checkpoint):
    return lambda **options: make_engine(model=checkpoint, **options)


@pytest.fixture(scope="module")
def model(checkpoint):
    return Engine(EngineConfig(model=checkpoint, device="cpu")).model


def _params(**options) -> SamplingParams:
    return SamplingParams(**({"max_new_tokens": COUNT, "ignore_eos": True} | options))


def _expected(model, prompt, params, count=COUNT, ends=()):
    """Tokens and logprobs, each from the whole sequence and by the definition."""
    tokens, logprobs = list(prompt), []
    with torch.inference_mode():
        for place in range(len(prompt), len(prompt) + count):
            raw = logits_of(model, torch.tensor(tokens))[-1].float()
            logits = raw.clone()
            output = tokens[len(prompt) :]
            for token in set(tokens):
                positive = logits[token] > 0
                factor = params.repetition_penalty
                logits[token] = logits[token] / factor if positive else logits[token] * factor
            for token in set(output):
                logits[token] -= params.presence_penalty
                logits[token] -= params.frequency_penalty * output.count(token)
            if len(output) < params.min_new_tokens:
                logits[list(ends)] = -torch.inf
            if params.min_p and params.temperature:
                probability = (logits / params.temperature).softmax(-1)
                logits[probability < params.min_p * probability.max()] = -torch.inf
            chosen = sample(
                logits[None],
                torch.tensor([params.temperature]),
                torch.tensor([params.top_k], dtype=torch.int32),
                torch.tensor([params.top_p]),
                torch.tensor([params.seed or 0]),
                torch.tensor([place], dtype=torch.int32),
            )
            tokens.append(int(chosen))
            logprobs.append(raw.log_softmax(-1))
    return tokens[len(prompt) :], logprobs


@pytest.mark.parametrize("name", SHAPED)
def test_tokens_are_those_of_the_definition(make, model, name):
    params = _params(**SHAPED[name])
    plain = _params(temperature=params.temperature, seed=params.seed, top_p=params.top_p)
    engine = make()
    shaped = tokens_of(engine, PROMPTS, params)
    assert shaped == [_expected(model, prompt, params)[0] for prompt in PROMPTS]
    # Something must have been changed for this to show anything.
    assert shaped != tokens_of(engine, PROMPTS, plain)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_logprobs_are_the_models_own(make, model, temperature):
    params = _params(logprobs=5, temperature=temperature, seed=8, presence_penalty=1.0)
    for completion, prompt in zip(make().generate(PROMPTS, params), PROMPTS, strict=True):
        tokens, expected = _expected(model, prompt, params)
        assert completion.token_ids == tokens
        assert len(completion.logprobs) == COUNT
        for token, given, row in zip(tokens, completion.logprobs, expected, strict=True):
            assert given.logprob == pytest.approx(float(row[token]), abs=1e-4)
            best = row.topk(5)
            assert [one for one, _ in given.top] == best.indices.tolist()
            np.testing.assert_allclose([one for _, one in given.top], best.values, atol=1e-3)


def test_asking_for_logprobs_changes_no_token(make):
    engine = make()
    for options in ({}, {"temperature": 1.0, "seed": 2}):
        plain = engine.generate(PROMPTS, _params(**options))
        told = engine.generate(PROMPTS, _params(logprobs=0, **options))
        assert [one.token_ids for one in told] == [one.token_ids for one in plain]
        assert plain[0].logprobs is None
        assert all(one.top == () for completion in told for one in completion.logprobs)


def test_neighbours_keep_their_tokens(make, model):
    """Rows that ask run beside greedy and sampled ones, and leave before and after them."""
    each = [
        _params(),
        _params(presence_penalty=2.0, max_new_tokens=9),
        _params(temperature=0.7, seed=1),
        _params(temperature=0.7, seed=1, min_p=0.2, max_new_tokens=31),
        _params(logprobs=2, max_new_tokens=5),
        _params(frequency_penalty=1.0, repetition_penalty=1.3, max_new_tokens=40),
    ]
    prompts = [PROMPTS[place % 3] for place in range(len(each))]
    engine = make(max_batch_size=4)
    assert tokens_of(engine, prompts, each) == [
        _expected(model, prompt, one, one.max_new_tokens)[0]
        for prompt, one in zip(prompts, each, strict=True)
    ]


@pytest.mark.parametrize("options", [{"num_kv_blocks": 8}, {"prefill_max_tokens": 3}], ids=repr)
def test_what_was_said_outlives_a_preemption(make, model, options):
    """Half of the sequences find no room for their tokens, and are computed again."""
    engine = make(block_size=4, max_model_len=32, prefix_cache=False, max_batch_size=3, **options)
    params = _params(frequency_penalty=1.5, repetition_penalty=1.2)
    assert tokens_of(engine, PROMPTS, params) == [
        _expected(model, prompt, params)[0] for prompt in PROMPTS
    ]


def test_a_slot_that_another_took_is_filled_again(make, monkeypatch):
    """Prompts that fit better pass over one that was sent away, and one of them takes its slot."""
    random = np.random.default_rng(0)
    lengths = [23, 25, 4, 18, 3, 9, 13, 2, 18, 29, 28, 18]
    prompts = [random.integers(3, 300, length).tolist() for length in lengths]
    params = _params(frequency_penalty=1.5, repetition_penalty=1.2)
    room = {"block_size": 4, "max_model_len": 64, "prefix_cache": False, "max_batch_size": 4}
    expected = tokens_of(make(**room), prompts, params)
    tight = make(**room, num_kv_blocks=16, admission="pack", force_fifo_every=100)
    fill, filled = shaper.Shaper._fill_words, []

    def counted(self, words, request, shaping):
        filled.append(request)
        fill(self, words, request, shaping)

    monkeypatch.setattr(shaper.Shaper, "_fill_words", counted)
    assert tokens_of(tight, prompts, params) == expected
    assert len(filled) > len(prompts)


def test_tokens_that_come_late_bring_their_own_logprobs(make, monkeypatch):
    """Some requests have ended by the time that the last tokens launched for them arrive."""
    engines = [make(steps_in_flight=count, max_batch_size=5) for count in (0, 4)]
    # As on a GPU; a CPU's are there at once.
    monkeypatch.setattr(engines[1]._loop.worker.token_slots, "has_arrived", lambda ticket: False)
    whole = tokens_of(engines[0], PROMPTS, _params())
    each = [
        _params(logprobs=2, presence_penalty=1.0, max_new_tokens=30),
        _params(logprobs=1, stop_token_ids=whole[1][5:6]),
        _params(logprobs=2, temperature=0.9, seed=2, min_p=0.01),
        _params(stop_token_ids=whole[0][2:3]),
        _params(logprobs=3, stop="a", max_new_tokens=30),
    ]
    prompts = [PROMPTS[place] for place in (0, 1, 2, 0, 1)] * 3
    made, late = (engine.generate(prompts, each * 3) for engine in engines)
    for one, other in zip(made, late, strict=True):
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        if one.logprobs is None:
            assert other.logprobs is None
            continue
        assert len(one.logprobs) == len(other.logprobs) == len(one.token_ids)
        for entry, its in zip(one.logprobs, other.logprobs, strict=True):
            assert entry.logprob == pytest.approx(its.logprob, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_gives_each_what_it_gets_alone(make, monkeypatch, seed):
    """Tight room, late tokens, and some who leave."""
    random = np.random.default_rng(seed)

    def drawn(place):
        options = {
            "max_new_tokens": int(random.integers(1, 30)),
            "temperature": float(random.choice([0.0, 0.0, 0.9])),
            "seed": place,
        }
        for name, value in (
            ("presence_penalty", 1.0),
            ("repetition_penalty", 1.3),
            ("min_p", 0.05),
            ("logprobs", 2),
            ("stop", ("a", "na")),
            ("stop_token_ids", (260, 17)),
            ("min_new_tokens", 1),
        ):
            if random.random() < 0.3:
                options[name] = value
        return SamplingParams(**options)

    prompts = [random.integers(3, 300, int(random.integers(1, 20))).tolist() for _ in range(24)]
    each = [drawn(place) for place in range(24)]
    room = {"block_size": 4, "max_model_len": 64}
    expected = make(**room, max_batch_size=1).generate(prompts, each)
    engine = make(**room, max_batch_size=6, num_kv_blocks=24, steps_in_flight=3)
    monkeypatch.setattr(engine._loop.worker.token_slots, "has_arrived", lambda ticket: False)
    ids = [
        engine.submit(prompt, one, text=bool(place % 2))
        for place, (prompt, one) in enumerate(zip(prompts, each, strict=True))
    ]
    left = set(random.choice(ids, 5, replace=False).tolist())
    events = {request_id: [] for request_id in ids}
    while engine.has_unfinished:
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
        if left and random.random() < 0.2:
            engine.abort(left.pop())
    for request_id, one in zip(ids, expected, strict=True):
        got = events[request_id]
        tokens = [event.token_id for event in got if event.token_id is not None]
        if got[-1].finish_reason == "abort":
            assert tokens == one.token_ids[: len(tokens)]
            continue
        assert (tokens, got[-1].finish_reason) == (one.token_ids, one.finish_reason)
        assert [event.logprobs is None for event in got] == [one.logprobs is None] * len(got)
        texts = {event.text is None for event in got}
        if texts == {False}:
            assert "".join(event.text for event in got) == one.text
        else:
            assert texts == {True}


def test_nothing_is_drawn_twice(make, monkeypatch):
    """Where every row that samples chooses again, the first path draws for nobody."""
    engine = make()

    def fail(*_):
        raise AssertionError("drawn")

    monkeypatch.setattr(engine._loop.worker.decoder, "redraw", fail)
    tokens_of(engine, PROMPTS, _params(temperature=1.0, min_p=0.1))


def test_a_row_may_move(make, model):
    """Long sequences that came last move to the rows of those that have ended."""
    engine = make(max_batch_size=8)
    long = _params(frequency_penalty=1.5, logprobs=1, max_new_tokens=60)
    short = [engine.submit(PROMPTS[0], _params(max_new_tokens=12)) for _ in range(7)]
    for _ in range(3):
        engine.step()
    kept = engine.submit(PROMPTS[1], long)
    events = run_to_end(engine)
    tokens, _ = _expected(model, PROMPTS[1], long, 60)
    assert [one.token_id for one in events if one.request_id == kept] == tokens
    assert {one.request_id for one in events} == {*short, kept}


def test_slots_are_used_again(make):
    engine = make(max_batch_size=2)
    params = _params(presence_penalty=2.0, max_new_tokens=6)
    alone = tokens_of(engine, PROMPTS[:1], params)
    for _ in range(5):
        assert tokens_of(engine, PROMPTS[:1] * 3, params) == alone * 3
    assert len(engine._loop.worker.shaper._owners) == 2


def test_no_end_comes_before_its_time(make, model, checkpoint):
    engine = make()
    free = _params(max_new_tokens=30)
    ends = tuple(tokens_of(engine, PROMPTS[:1], free)[0][2:4])
    params = _params(max_new_tokens=30, stop_token_ids=ends, min_new_tokens=12)
    (completion,) = engine.generate(PROMPTS[:1], params)
    tokens, _ = _expected(model, PROMPTS[0], params, 30, ends)
    first_end = next((place for place, one in enumerate(tokens) if one in ends), 29)
    assert completion.token_ids == tokens[: first_end + 1]
    assert first_end >= 12


def test_a_stop_string_ends_the_request_and_its_text(make):
    engine = make()
    (whole,) = engine.generate(PROMPTS[:1], _params(max_new_tokens=60))
    stop = whole.text[20:23]
    end = whole.text.index(stop)
    params = _params(max_new_tokens=60, stop=[stop, "never in it"])
    (completion,) = engine.generate(PROMPTS[:1], params)
    assert (completion.text, completion.finish_reason) == (whole.text[:end], "stop")
    count = len(completion.token_ids)
    assert completion.token_ids == whole.token_ids[:count]
    assert stop in engine.tokenizer.decode(completion.token_ids)
    assert stop not in engine.tokenizer.decode(completion.token_ids[:-1])


def test_a_stream_brings_text_where_it_is_asked(make):
    engine = make()
    completions = engine.generate(PROMPTS, _params(max_new_tokens=40))
    texts: dict[int, str] = {}
    for event in engine.stream(PROMPTS, _params(max_new_tokens=40, logprobs=1), text=True):
        texts[event.request_id] = texts.get(event.request_id, "") + event.text
        assert event.logprobs is not None
    assert [texts[one] for one in sorted(texts)] == [one.text for one in completions]
    assert {event.text for event in engine.stream(PROMPTS, _params(max_new_tokens=2))} == {None}


def test_the_last_event_of_an_abort_brings_what_was_held(make):
    engine = make()
    request_id = engine.submit(
        PROMPTS[0], _params(stop="\N{REPLACEMENT CHARACTER}" * 50), text=True
    )
    events = [event for _ in range(6) for event in engine.step()]
    engine.abort(request_id)
    events += run_to_end(engine)
    assert events[-1].finish_reason == "abort"
    said = [event.token_id for event in events[:-1]]
    assert "".join(event.text for event in events) == engine.tokenizer.decode(said)


def test_a_stop_string_in_bytes_that_were_held_back_is_the_reason(make):
    engine, stop = make(), "\N{REPLACEMENT CHARACTER}"
    for first in range(5, 300):
        prompt = [first, *PROMPTS[0]]
        (whole,) = engine.generate([prompt], _params(max_new_tokens=12))
        texts = [engine.tokenizer.decode(whole.token_ids[:count]) for count in range(13)]
        count = next((place for place in range(12) if stop in texts[place]), 0)
        # It ends in the middle of a character, which the next token completes.
        if count and stop not in texts[count + 1]:
            break
    (made,) = engine.generate([prompt], _params(max_new_tokens=count, stop=stop))
    assert (made.text, made.finish_reason) == (texts[count][:-1], "stop")


def test_answers_of_one_prompt_stand_beside_each_other(make):
    engine = make()
    params = _params(n=3, temperature=1.0, seed=4)
    completions = engine.generate(PROMPTS[:2], params)
    assert [one.prompt_ids for one in completions] == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3
    assert len({tuple(one.token_ids) for one in completions}) == 6
    single = engine.generate(PROMPTS[:2], _params(temperature=1.0, seed=4))
    assert [one.token_ids for one in completions[::3]] == [one.token_ids for one in single]
    again = engine.generate(PROMPTS[:2], params)
    assert [one.token_ids for one in again] == [one.token_ids for one in completions]
    first = engine.submit(PROMPTS[0], params)
    events = run_to_end(engine)
    assert {event.request_id for event in events} == {first, first + 1, first + 2}
    for place in range(3):
        said = [one.token_id for one in events if one.request_id == first + place]
        assert said == completions[place].token_ids


def test_chat_answers_by_the_template(make):
    engine = make()
    messages = [{"role": "user", "content": "the quick brown fox"}]
    said = "<|im_start|>user\nthe quick brown fox<|im_end|>\n<|im_start|>assistant\n"
    params = _params(max_new_tokens=8)
    answer = engine.chat(messages, params)
    assert engine.tokenizer.decode(answer.prompt_ids, skip_special_tokens=False) == said
    assert answer.token_ids == engine.generate([said], params)[0].token_ids
    with pytest.raises(RequestError, match="one answer"):
        engine.chat(messages, SamplingParams(n=2))


def test_a_choice_without_memory_ends_its_request_alone(make, monkeypatch):
    engine = make()
    asking = engine.submit(PROMPTS[0], _params(presence_penalty=1.0))
    plain = engine.submit(PROMPTS[1], _params())

    def fail(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(shaper, "penalized", fail)
    ends = {one.request_id: one.finish_reason for one in run_to_end(engine) if one.finish_reason}
    assert ends == {asking: "error", plain: "length"}
    monkeypatch.undo()
    assert len(tokens_of(engine, PROMPTS[:1], _params(presence_penalty=1.0))[0]) == COUNT


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_p": 1.1}, "min_p is 1.1; it must be from 0 to 1"),
        ({"min_p": float("nan")}, "min_p"),
        ({"presence_penalty": "high"}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logprobs": 21}, "0 to 20"),
        ({"logprobs": -1}, "logprobs"),
        ({"n": 0}, "n is 0"),
        ({"min_new_tokens": 17}, "min_new_tokens is 17; it must be a whole number of 0 to 16"),
        ({"stop": ""}, "none empty"),
        ({"stop": [1]}, "none empty"),
        ({"stop": ["x"] * 17}, "16 at most"),
    ],
    ids=repr,
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(RequestError, match=said):
        SamplingParams(**options)


def test_text_without_a_tokenizer_is_refused(make_engine):
    engine = make_engine()
    for refused in (
        lambda: engine.submit([1], SamplingParams(stop="x")),
        lambda: engine.submit([1], text=True),
        lambda: engine.stream([[1]], text=True),
        lambda: engine.generate([[1]], SamplingParams(stop="x")),
        lambda: engine.chat([{"role": "user", "content": "x"}]),
    ):
        with pytest.raises(RequestError, match="no tokenizer"):
            refused()
    assert not engine.has_unfinished


def test_more_answers_than_may_be_unfinished_are_refused(make_engine):
    engine = make_engine(max_inflight_requests=4)
    with pytest.raises(RequestError, match="5 answers are asked for; 4 may"):
        engine.submit([1], SamplingParams(n=5))
    assert not engine.has_unfinished
