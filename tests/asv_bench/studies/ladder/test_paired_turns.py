"""What two processes in turns took: disturbances left out, dear places in a block counted."""

from __future__ import annotations

import numpy as np
import pytest

from asv_bench.studies.ladder.engine_in_turns import TURNS_OF_BLOCK
from asv_bench.studies.ladder.paired_turns import paired_seconds

BLOCKS = 8


def test_disturbed_turns_of_either_are_left_out():
    base = np.full(BLOCKS * TURNS_OF_BLOCK, 2.0)
    head = 1.1 * base
    base[[3, 40]] *= 5
    head[[0, 17, 60]] *= 9
    assert paired_seconds([base], [head]) == pytest.approx((2.0, 2.2))


def test_what_both_met_cancels_out():
    load = np.exp(np.random.default_rng(0).normal(0, 0.3, (2, BLOCKS * TURNS_OF_BLOCK)))
    base, head = paired_seconds(load, 1.01 * load)
    assert head / base == pytest.approx(1.01)


def test_a_dear_turn_of_every_block_counts_as_often_as_it_comes():
    base = np.ones(BLOCKS * TURNS_OF_BLOCK)
    head = base.copy()
    head[5::TURNS_OF_BLOCK] = 1.0 + 0.1 * TURNS_OF_BLOCK
    assert paired_seconds([base, base], [head, head]) == pytest.approx((1.0, 1.1))


def test_turns_that_one_process_lacks_are_not_compared():
    base = np.ones(2 * TURNS_OF_BLOCK + 3)
    head = np.concatenate([2 * base, [900.0, 900.0]])
    assert paired_seconds([base, 7 * base], [head]) == pytest.approx((1.0, 2.0))


def test_without_turns_there_is_nothing_to_say():
    assert paired_seconds([], []) is None
    assert paired_seconds([[1.0]], [[1.0]]) is None
