"""For whom a launch makes tokens: found once for launches that are alike, and told apart later."""

from __future__ import annotations

import numpy as np
import pytest

from engine.requests.params import SamplingParams
from engine.requests.request import Request
from engine.running.recipients import Recipients
from engine.scheduling.rows import Rows, place_of


@pytest.fixture
def held() -> Rows:
    """Four rows, held by requests 10 to 13 in order."""
    rows = Rows(num_rows=4, max_model_len=16, block_size=4)
    prompt = np.array([5], np.int32)
    rows.take([Request(10 + i, prompt, SamplingParams(), 0, (), 0.0) for i in range(4)])
    return rows


def test_recipients_are_who_holds_the_rows_in_their_order(held):
    to = Recipients.of(np.array([2, 0, 3]), held)
    assert to.request_ids.tolist() == to.id_list == [12, 10, 13]
    assert to.request_ids.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        to.request_ids[0] = 1


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [0, 2], [1, 2], [3], [0, 1, 3]], ids=str)
def test_a_place_finds_its_rows(held, rows):
    place = place_of(np.array(rows, np.intp))
    assert held.request_ids[place].tolist() == [10 + row for row in rows]
    assert isinstance(place, slice) == (rows == list(range(len(rows))))


def test_they_are_the_same_until_a_row_is_given_back(held):
    rows = np.array([0, 1])
    to = Recipients.of(rows, held)
    assert to.are(rows, held)
    assert not to.are(np.array([0, 2]), held)
    held.release(np.array([3]))
    assert not to.are(rows, held)


def test_whose_row_has_changed_hands_holds_it_no_more(held):
    to = Recipients.of(np.array([0, 1, 3]), held)
    assert to.still_hold(held) is None
    held.release(np.array([2]))
    assert to.still_hold(held) is None
    held.release(np.array([1]))
    held.take([Request(20, np.array([5], np.int32), SamplingParams(), 0, (), 0.0)])
    still = to.still_hold(held)
    assert still.tolist() == [True, False, True]
    rest = to.only(still)
    assert rest.request_ids.tolist() == rest.id_list == [10, 13]
    assert rest.rows.tolist() == [0, 3]


def test_batches_of_steps_that_are_alike_share_their_ids(make_engine, prompts):
    engine = make_engine()
    for prompt in prompts[:3]:
        engine.submit(prompt, SamplingParams(max_new_tokens=6, ignore_eos=True))
    batches = []
    while engine.has_unfinished:
        batches += engine.step_batches()
    alike = [batch for batch in batches if len(batch) == 3]
    assert len({id(batch.request_ids) for batch in alike}) < len(alike)
    events = [batch.events() for batch in alike]
    assert all(row[0].request_id == events[0][0].request_id for row in events)
