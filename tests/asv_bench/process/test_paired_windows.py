"""Windows of two processes in turns: what disturbs one of them, or both, moves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from asv_bench.stats.paired import undisturbed


def test_what_disturbs_one_or_both_moves_nothing() -> None:
    base, head = np.full(12, 2.0), np.full(12, 2.2)
    base[[3, 7]] *= 5
    head[0] *= 9
    assert undisturbed(base, head) == pytest.approx((2.0, 2.2))
    load = np.exp(np.random.default_rng(0).normal(0, 0.5, 40))
    of_base, of_head = undisturbed(load, 1.02 * load)
    assert of_head / of_base == pytest.approx(1.02)
    one, other = np.exp(np.random.default_rng(1).normal(0, 0.1, (2, 41)))
    assert undisturbed(other, one)[::-1] == pytest.approx(undisturbed(one, other))


def test_windows_of_one_alone_are_left_out() -> None:
    assert undisturbed([1.0, 1.0, 900.0], [3.0, 3.0]) == pytest.approx((1.0, 3.0))
    assert undisturbed([5.0], [6.0]) == pytest.approx((5.0, 6.0))
