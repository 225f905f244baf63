"""Who is given which tokens, and what that costs beside the number of open runs."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import pytest

from engine.requests.delivery import Delivery
from engine.requests.run import Run
from engine.requests.token_batch import TokenBatch

NUM_TOKENS = 256


def batch_of(request_ids, reasons=None) -> TokenBatch:
    ids = np.array(request_ids, np.int64)
    count = len(ids)
    return TokenBatch(
        ids, np.arange(count, dtype=np.int32), ids.astype(np.int32), 1.0, reasons or {}
    )


def open_runs(delivery: Delivery, owners: list[list[int]]) -> list[Run]:
    runs = [Run(deque(), 0.0, keeps_events=True) for _ in owners]
    for run, ids in zip(runs, owners, strict=True):
        for request_id in ids:
            delivery.expect(request_id, run)
    return runs


@pytest.mark.parametrize("ended", [(), (0, 2, 4)], ids=["all go on", "some end"])
def test_each_token_goes_to_the_run_of_its_request(ended):
    delivery = Delivery()
    first, second = open_runs(delivery, [[3, 5], [4]])
    delivery.deal([batch_of([3, 9, 4, 5, 8], dict.fromkeys(ended, "length")), batch_of([5])])
    assert [event.request_id for event in first.events] == [3, 5, 5]
    assert [event.request_id for event in second.events] == [4]
    (unclaimed,) = delivery.take_unclaimed()
    assert [event.request_id for event in unclaimed.events()] == [9, 8]
    assert [event.finish_reason for event in unclaimed.events()] == [
        None,
        "length" if ended else None,
    ]
    assert (first.unfinished, second.unfinished) == (({5}, set()) if ended else ({3, 5}, {4}))
    assert second.is_over == bool(ended)


def test_nothing_comes_for_a_run_that_is_closed():
    delivery = Delivery()
    closed, open_ = open_runs(delivery, [[0, 1], [2]])
    delivery.deal([batch_of([0, 1, 2])])
    delivery.close(closed)
    assert closed.is_over
    assert not closed.events
    assert [event.request_id for event in open_.events] == [2]


def test_a_step_costs_its_tokens_however_many_runs_are_open():
    seconds = {}
    for num_runs in (1, NUM_TOKENS):
        delivery = Delivery()
        each = NUM_TOKENS // num_runs
        starts = range(0, NUM_TOKENS, each)
        runs = open_runs(delivery, [[*range(start, start + each)] for start in starts])
        readings = []
        for _ in range(20):
            batch = batch_of(range(NUM_TOKENS))
            started = time.process_time()
            delivery.deal([batch])
            readings.append(time.process_time() - started)
        assert sum(len(run.events) for run in runs) == 20 * NUM_TOKENS
        seconds[num_runs] = min(readings)
    # Told apart by one run after another, it would be hundreds of times as much.
    assert seconds[NUM_TOKENS] < 10 * seconds[1]
