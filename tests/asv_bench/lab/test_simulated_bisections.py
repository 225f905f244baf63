"""Simulated bisections of noisy ranges, and how they are counted."""

from __future__ import annotations

import pytest

from asv_bench.bisect.plan import SearchPlan
from asv_bench.lab.calibration.simulate_bisect import Scenario, bisect_often, bisect_once


@pytest.mark.parametrize(("effect", "pairs"), [(0.02, 120), (0.03, 80), (0.05, 60)])
def test_simulated_searches_are_right_on_a_noisy_machine(effect: float, pairs: int) -> None:
    row = bisect_often(Scenario("", (effect,)), runs=40, seed=1000)
    assert row["right"] >= 39
    assert row["pairs_mean"] < pairs


def test_a_simulated_range_without_a_step_is_said_to_have_none() -> None:
    row = bisect_often(Scenario("nothing", ()), runs=40, seed=1000)
    assert row["right"] >= 39
    assert row["wrong_commit"] == 0


def test_a_simulated_search_can_be_wrong() -> None:
    """The simulation must not judge kindly: an answer without certainty is not a right one."""
    trials = [
        bisect_once(Scenario("", (0.03,)), seed, plan=SearchPlan(most_pairs=1)) for seed in range(5)
    ]
    assert not any(trial.right for trial in trials)


def test_a_commit_with_an_offset_is_neither_asked_for_ever_nor_named() -> None:
    """Its pairs all have the same offset: more of them say nothing new of the curve."""
    scenario = Scenario("", (0.02,), jitter=0.005)
    for seed in (1, 4, 8):
        trial = bisect_once(scenario, seed)
        assert not trial.is_wrong
        assert max(point.pairs for point in trial.finding.curve[:-1]) < 100
