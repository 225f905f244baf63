"""Windows of two processes in turns: what disturbs one of them, or both, moves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from asv_bench.stats.paired import undisturbed


def test_windows_in_which_either_was_disturbed_are_left_out():
    base, head = np.full(12, 2.0), np.full(12, 2.2)
    base[[3, 7]] *= 5
    head[0] *= 9
    assert undisturbed(base, head) == pytest.approx((2.0, 2.2))


def test_load_that_both_met_cancels_out_however_it_varies():
    load = np.exp(np.random.default_rng(0).normal(0, 0.5, 40))
    base, head = undisturbed(load, 1.02 * load)
    assert head / base == pytest.approx(1.02)


def test_neither_side_is_favoured():
    one, other = np.exp(np.random.default_rng(1).normal(0, 0.1, (2, 41)))
    base, head = undisturbed(one, other)
    swapped = undisturbed(other, one)
    assert swapped == pytest.approx((head, base))


def test_windows_of_one_alone_are_left_out():
    assert undisturbed([1.0, 1.0, 900.0], [3.0, 3.0]) == pytest.approx((1.0, 3.0))
    assert undisturbed([5.0], [6.0]) == pytest.approx((5.0, 6.0))
