"""Tokens in columns: the same as the events, and told apart by whose they are."""

from __future__ import annotations

import gc
import pickle

import msgspec
import numpy as np
import pytest

from engine import SamplingParams, TokenBatch, TokenEvent
from engine.transport.token_slots import TokenSlots

UNEQUAL = [SamplingParams(max_new_tokens=count, ignore_eos=True) for count in (3, 20, 7, 7)]


@pytest.fixture
def batch() -> TokenBatch:
    """Five requests, of which one goes on in the middle of four that end."""
    return TokenBatch(
        np.array([14, 11, 12, 10, 13], np.int64),
        np.array([7, -1, 300, 0, -1], np.int32),
        np.array([0, 4, 5, 6, 9], np.int32),
        2.5,
        {0: "stop", 1: "abort", 3: "length", 4: "error"},
    )


def test_each_column_is_in_the_events(batch):
    assert batch.events() == [
        TokenEvent(14, 7, 0, 2.5, "stop"),
        TokenEvent(11, None, 4, 2.5, "abort"),
        TokenEvent(12, 300, 5, 2.5, None),
        TokenEvent(10, 0, 6, 2.5, "length"),
        TokenEvent(13, None, 9, 2.5, "error"),
    ]
    assert all(type(event) is TokenEvent for event in batch.events())
    assert len(batch) == 5
    assert batch.ended_ids == [14, 11, 10, 13]


def test_events_are_kept_without_work_for_the_garbage_collector(batch):
    events = batch.events()
    assert not any(gc.is_tracked(event) for event in events)
    assert len(set(events)) == 5
    assert pickle.loads(pickle.dumps(events)) == events
    with pytest.raises(AttributeError):
        events[0].token_id = 3


@pytest.mark.parametrize(
    "ids", [set(), {12}, {10, 13}, {11, 12}, {10, 11, 12, 13, 14, 15}, {99}], ids=str
)
def test_a_batch_is_told_apart_by_its_requests(batch, ids):
    theirs = batch.only(np.array([request_id in ids for request_id in batch.ids], np.bool_))
    assert theirs.events() == [event for event in batch.events() if event.request_id in ids]


def test_batches_tell_what_the_events_tell(make_engine, prompts):
    told = []
    for way in ("step", "step_batches"):
        engine = make_engine(max_batch_size=3, num_kv_blocks=16)
        ids = [engine.submit(*each) for each in zip(prompts[:4], UNEQUAL, strict=True)]
        engine.abort(ids[1])
        events = []
        while engine.has_unfinished:
            if way == "step":
                events += engine.step()
                continue
            for batch in engine.step_batches():
                assert len(np.unique(batch.request_ids)) == len(batch) > 0
                dtypes = (batch.request_ids.dtype, batch.token_ids.dtype, batch.indices.dtype)
                assert dtypes == (np.int64, np.int32, np.int32)
                events += batch.events()
        told.append([msgspec.structs.replace(event, time_s=0.0) for event in events])
    assert told[0] == told[1]
    # Of the other three all tokens, and the end of the one that was aborted before its first.
    assert len(told[0]) == 3 + 7 + 7 + 1
    assert told[0][0] == TokenEvent(ids[1], None, 0, 0.0, "abort")


def test_tokens_for_nobody_are_no_batch(make_engine, prompts, monkeypatch):
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda *_: False)
    engine = make_engine(steps_in_flight=2)
    request_id = engine.submit(prompts[0], UNEQUAL[1])
    for _ in range(3):
        engine.step_batches()
    # Two launches are on their way, whose row is nobody's now.
    engine.abort(request_id)
    ends = [batch.events() for batch in engine.step_batches()]
    assert [[event.finish_reason for event in events] for events in ends] == [["abort"]]
    assert not engine.has_unfinished


def test_a_batch_keeps_its_tokens_when_the_engine_goes_on(make_engine, prompts):
    engine = make_engine()
    for each in zip(prompts[:4], UNEQUAL, strict=True):
        engine.submit(*each)
    kept = []
    while engine.has_unfinished:
        kept += [(batch, batch.events()) for batch in engine.step_batches()]
    assert [batch.events() for batch, _ in kept] == [events for _, events in kept]


def test_others_get_all_their_tokens_after_a_generate(make_engine, prompts, greedy_alone):
    engine = make_engine()
    # They end before, in the midst of and after what `generate` waits for, in one batch with it.
    others = [engine.submit(prompts[place], UNEQUAL[place]) for place in (0, 1, 2)]
    own = engine.generate([prompts[3], prompts[4]], UNEQUAL[2])
    assert [completion.token_ids for completion in own] == [
        greedy_alone[place][:7] for place in (3, 4)
    ]
    events = []
    while engine.has_unfinished:
        events += engine.step()
    assert {event.request_id for event in events} == set(others)
    for place, request_id in enumerate(others):
        count = UNEQUAL[place].max_new_tokens
        theirs = [event for event in events if event.request_id == request_id]
        assert [event.token_id for event in theirs] == greedy_alone[place][:count]
        assert [event.finish_reason for event in theirs] == [None] * (count - 1) + ["length"]
