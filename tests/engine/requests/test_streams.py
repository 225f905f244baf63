"""Streams: who is given which tokens, and what a step that fails leaves of them."""

from __future__ import annotations

from itertools import islice

import pytest
from engine_cases import GREEDY, run_to_end, tokens_of

from engine import EngineStoppedError


def test_stream_yields_what_generate_returns(make_engine, prompts, greedy_alone):
    engine = make_engine(max_inflight_requests=3)
    outputs: dict[int, list[int]] = {}
    for event in engine.stream(prompts, GREEDY):
        outputs.setdefault(event.request_id, []).append(event.token_id)
    assert [outputs[i] for i in sorted(outputs)] == greedy_alone


def test_leaving_a_stream_early_aborts_the_rest_and_keeps_other_requests(
    make_engine, prompts, greedy_alone
):
    engine = make_engine()
    other = engine.submit(prompts[3], GREEDY)
    stream = engine.stream(prompts[:3], GREEDY)
    for _ in range(4):
        next(stream)
    stream.close()
    events = run_to_end(engine)
    assert [event.token_id for event in events] == greedy_alone[3]
    assert {event.request_id for event in events} == {other}


@pytest.mark.parametrize("ahead", [1, 8, 20], ids=lambda n: f"{n} of one, then one of the other")
def test_streams_that_take_turns_have_each_its_own_tokens(
    make_engine, prompts, greedy_alone, ahead
):
    engine = make_engine()
    first, second = engine.stream(prompts[:1], GREEDY), engine.stream(prompts[1:2], GREEDY)
    taken: dict[int, list[int]] = {0: [], 1: []}
    while len(taken[1]) < 20:
        for stream, count in ((first, ahead), (second, 1)):
            for event in islice(stream, count):
                assert event.index == len(taken[event.request_id])
                taken[event.request_id].append(event.token_id)
    assert [taken[0], taken[1]] == greedy_alone[:2]
    assert list(first) == list(second) == []
    assert not engine.has_unfinished


def test_a_stream_left_early_leaves_the_others_tokens_in_order(make_engine, prompts, greedy_alone):
    engine = make_engine()
    left, kept = engine.stream(prompts[:1], GREEDY), engine.stream(prompts[1:2], GREEDY)
    tokens = [next(kept).token_id]
    for _ in range(5):
        next(left)
    tokens.append(next(kept).token_id)
    left.close()
    assert tokens + [event.token_id for event in kept] == greedy_alone[1]


def test_all_ways_to_run_may_be_used_at_once(make_engine, prompts, greedy_alone):
    engine = make_engine()
    stream = engine.stream(prompts[:1], GREEDY)
    submitted = engine.submit(prompts[1], GREEDY)
    streamed = [next(stream).token_id for _ in range(3)]
    assert tokens_of(engine, prompts[2:4]) == greedy_alone[2:4]
    # What came for the submitted request meanwhile waits for the next step.
    events = engine.step()
    assert len(events) > 3
    events += run_to_end(engine)
    assert {event.request_id for event in events} == {submitted}
    assert [event.token_id for event in events] == greedy_alone[1]
    assert streamed + [event.token_id for event in stream] == greedy_alone[0]


def test_a_stream_is_told_that_its_request_was_aborted(make_engine, prompts):
    engine = make_engine()
    stream = engine.stream(prompts[:2], GREEDY)
    request_id = next(stream).request_id
    engine.abort(request_id)
    ends = {event.request_id: event.finish_reason for event in stream if event.finish_reason}
    assert ends == {request_id: "abort", 1 - request_id: "length"}


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("num_steps", [0, 3], ids=["in a prefill", "in a decode step"])
def test_a_step_that_fails_stops_the_engine(make_engine, prompts, monkeypatch, error, num_steps):
    """Were it to go on, host and device would be a token apart."""
    engine = make_engine()
    request_id = engine.submit(prompts[3], GREEDY)
    for _ in range(num_steps):
        engine.step()

    def fail(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(engine.model, "forward", fail)
        with pytest.raises(type(error)):
            engine.step()
    for go_on in (
        engine.step,
        lambda: engine.submit(prompts[0]),
        lambda: engine.abort(request_id),
        lambda: engine.generate(prompts),
        lambda: engine.stream(prompts),
    ):
        with pytest.raises(EngineStoppedError, match=f"{type(error).__name__}.*build a new Engine"):
            go_on()


def test_what_stopped_the_engine_is_what_its_runs_raise(make_engine, prompts, monkeypatch):
    engine = make_engine()
    stream = engine.stream(prompts[:2], GREEDY)
    next(stream)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts[2:], GREEDY)
    with pytest.raises(EngineStoppedError):
        list(stream)
