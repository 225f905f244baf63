"""Which row a request is given, and what must not be given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import IntegrityError
from engine.requests.params import SamplingParams
from engine.requests.request import Request
from engine.scheduling.rows import Rows


def make_request(request_id: int, *, max_new_tokens: int = 4, prompt_len: int = 3) -> Request:
    return Request(
        request_id=request_id,
        prompt=np.arange(prompt_len, dtype=np.int32),
        params=SamplingParams(max_new_tokens=max_new_tokens),
        seed=0,
        stop_ids=(),
        submitted_s=0.0,
    )


def test_lowest_row_goes_to_most_tokens_to_come_then_to_the_longest() -> None:
    rows = Rows(num_rows=4, max_model_len=16, block_size=4)
    first = make_request(0, max_new_tokens=2)
    longest = make_request(1, max_new_tokens=9)
    longer_prompt = make_request(2, max_new_tokens=2, prompt_len=5)
    rows.take([first, longest, longer_prompt])
    assert [first.row, longest.row, longer_prompt.row] == [2, 0, 1]


def test_a_released_row_is_taken_before_higher_ones() -> None:
    rows = Rows(num_rows=3, max_model_len=16, block_size=4)
    requests = [make_request(request_id) for request_id in range(2)]
    rows.take(requests)
    rows.release(np.array([0]))
    late = make_request(2)
    rows.take([late])
    assert late.row == 0
    assert requests[0].row is None


def test_taking_no_row_changes_nothing() -> None:
    rows = Rows(num_rows=2, max_model_len=16, block_size=4)
    rows.take([])
    assert rows.num_taken == 0


@pytest.mark.parametrize("num_free", [0, 1])
def test_more_requests_than_free_rows_are_refused(num_free: int) -> None:
    rows = Rows(num_rows=2, max_model_len=16, block_size=4)
    rows.take([make_request(request_id) for request_id in range(2 - num_free)])
    late = [make_request(request_id) for request_id in range(10, 10 + num_free + 1)]
    with pytest.raises(IntegrityError, match=rf"{num_free + 1} requests .* {num_free} are free"):
        rows.take(late)
    assert all(request.row is None for request in late)
    assert rows.num_taken == 2 - num_free


def test_stop_ids_are_as_wide_as_the_requests_that_are_there_need() -> None:
    rows = Rows(num_rows=4, max_model_len=16, block_size=4)
    stops = [(5,), tuple(range(200)), (), (7, 9)]
    requests = [replace(make_request(place), stop_ids=ids) for place, ids in enumerate(stops)]
    rows.take(requests)
    every = np.array([request.row for request in requests])
    assert rows.stop_ids.shape == (4, 200)
    wide, others = every[1:2], every[[0, 2, 3]]
    assert rows.are_stops(every, np.array([5, 199, 5, 9], np.int32)).tolist() == [1, 1, 0, 1]
    rows.release(wide)
    assert rows.stop_ids.shape == (4, 2)
    assert rows.are_stops(others, np.array([5, 5, 9], np.int32)).tolist() == [1, 0, 1]
    rows.release(others)
    assert rows.stop_ids.shape == (4, 1)
    rows.take([replace(make_request(9), stop_ids=(1, 2, 3))])
    assert rows.stop_ids.shape == (4, 3)
    assert rows.are_stops(np.array([0]), np.array([3], np.int32)).all()
