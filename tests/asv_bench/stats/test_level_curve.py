"""The posterior over a curve of levels: what pairs say of steps, and what is asked next."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from asv_bench.stats.level_curve import REFERENCE, Gap, LevelCurve

MARGIN = math.log1p(0.01)


def quiet_ratios(level: float, pairs: int = 8) -> list[float]:
    """Log-ratios around a level, a fifth of a per cent apart."""
    return [level + 0.002 * step / pairs for step in range(-pairs // 2, pairs // 2)]


def levels_of(steps: Mapping[int, float], count: int) -> list[float]:
    return [sum(rise for place, rise in steps.items() if place <= n) for n in range(count)]


def measured(steps: Mapping[int, float], count: int, commits: range | None = None) -> LevelCurve:
    """A curve of which these commits were measured, and the bad end."""
    curve = LevelCurve(count, MARGIN)
    levels = levels_of(steps, count)
    for commit in {*(commits or range(count)), count - 1}:
        curve.observe(REFERENCE, commit, quiet_ratios(levels[commit]))
    return curve


def steps_of(curve: LevelCurve) -> dict[int, float]:
    """The effects of all certain steps, by the last commit of their gap."""
    return {gap.commits[-1]: gap.effect for gap in curve.gaps() if gap.probability > 0.9}


def gap_at(curve: LevelCurve, commit: int) -> Gap:
    return next(gap for gap in curve.gaps() if commit in gap.commits)


@pytest.mark.parametrize(
    "steps",
    [
        *({}, {0: 0.03}, {5: 0.03}, {9: 0.03}, {5: 0.4}),
        *({3: 0.05, 6: -0.03}, {3: 0.05, 6: -0.05}, {2: 0.02, 5: 0.03, 8: -0.04}),
    ],
)
def test_clear_pairs_name_every_step_its_effect_and_the_levels(steps: dict[int, float]) -> None:
    curve = measured(steps, 10)
    assert steps_of(curve) == pytest.approx(steps, abs=0.004)
    assert sum(gap.probability for gap in curve.gaps()) == pytest.approx(len(steps), abs=0.1)
    for level, truth in zip(curve.levels(), levels_of(steps, 10), strict=True):
        assert level.mean == pytest.approx(truth, abs=0.003)
        assert level.low <= level.mean <= level.high
        # The grid is as fine as the largest step lets it be.
        assert level.high - level.low < (MARGIN if 0.4 not in steps.values() else 2 * MARGIN)


def test_commits_between_two_measured_ones_are_one_gap() -> None:
    curve = measured({5: 0.03}, 10, range(1, 10, 4))
    [gap] = [gap for gap in curve.gaps() if gap.probability > 0.9]
    assert gap.commits == range(2, 6)
    assert not gap.is_atomic
    for commit in (2, 3, 4):
        curve.exclude(commit)
    [gap] = [gap for gap in curve.gaps() if gap.probability > 0.9]
    assert gap.is_atomic


def test_a_slope_an_outlier_and_an_offset_are_no_steps() -> None:
    curve = measured(dict.fromkeys(range(5, 20), 0.002), 25)
    assert steps_of(curve) == {}
    assert max(gap.probability for gap in curve.gaps()) < 0.2
    curve = measured({6: 0.03}, 10)
    # A disturbed process: this commit looks 40 % slower once, and normal eight times.
    curve.observe(REFERENCE, 2, [0.4])
    assert list(steps_of(curve)) == [6]
    # A commit that differs from all around it by 0.5 % is not called two steps.
    assert list(steps_of(measured({4: 0.005, 5: -0.005, 7: 0.03}, 10))) == [7]


def test_noise_of_two_modes_or_of_one_end_does_not_hide_a_step() -> None:
    draws = np.random.default_rng(3)

    def pairs(level: float, count: int) -> list[float]:
        slow = draws.random((2, count)) < 0.3
        errors = 0.004 * draws.standard_normal(count)
        return list(level + 0.05 * (slow[0] * 1.0 - slow[1]) + errors)

    curve = LevelCurve(8, MARGIN)
    for commit in range(8):
        curve.observe(REFERENCE, commit, pairs(0.02 if commit >= 5 else 0.0, 10))
    assert steps_of(curve) == pytest.approx({5: 0.02}, abs=0.006)
    # Nor does an end with wider noise hide a step.
    draws = np.random.default_rng(0)
    curve = LevelCurve(8, MARGIN)
    for commit in range(8):
        noise = 0.03 if commit == 7 else 0.002
        level = 0.02 if commit >= 3 else 0.0
        curve.observe(REFERENCE, commit, list(level + noise * draws.standard_normal(8)))
    assert list(steps_of(curve)) == [3]


def test_pairs_of_neighbours_decide_whether_there_is_a_step_between_them() -> None:
    curve = LevelCurve(10, MARGIN)
    curve.observe(REFERENCE, 9, quiet_ratios(0.03))
    for commit, level in ((4, 0.006), (5, 0.023)):
        curve.observe(REFERENCE, commit, [level])
    before = gap_at(curve, 5).probability
    curve.observe(4, 5, quiet_ratios(0.03))
    assert gap_at(curve, 5).probability > max(before, 0.95)
    curve.observe(4, 5, quiet_ratios(0.0, 40))
    assert gap_at(curve, 5).probability < 0.2


def test_the_commit_in_the_middle_of_the_suspects_is_asked_first() -> None:
    curve = LevelCurve(64, MARGIN)
    curve.observe(REFERENCE, 63, quiet_ratios(0.03, 16))
    assert curve.most_informative() in range(24, 40)
    before = curve.pairs_left()
    curve.observe(REFERENCE, 31, quiet_ratios(0.03))
    assert before > curve.pairs_left() > 0
    assert curve.most_informative() in range(11, 21)
    curve.observe(REFERENCE, 15, quiet_ratios(0.0))
    assert curve.most_informative() in range(21, 26)
    # The second of two steps, once the first is known.
    curve = LevelCurve(32, MARGIN)
    levels = levels_of({8: 0.05, 20: -0.03}, 32)
    for commit in (7, 8, 15, 31):
        curve.observe(REFERENCE, commit, quiet_ratios(levels[commit]))
    assert curve.most_informative() in range(16, 31)
    # Pairs that are measured together split the range.
    curve = LevelCurve(64, MARGIN)
    curve.observe(REFERENCE, 63, quiet_ratios(0.05, 16))
    pending: list[int] = []
    for _ in range(3):
        pending.append(curve.most_informative(pending))
    assert np.diff([0, *sorted(pending), 63]).min() >= 8


def test_a_commit_that_cannot_be_measured_is_not_asked_for_and_a_single_candidate_is() -> None:
    curve = LevelCurve(16, MARGIN)
    curve.observe(REFERENCE, 15, quiet_ratios(0.03))
    for commit in range(4, 12):
        curve.exclude(commit)
    assert curve.most_informative() in (3, 12)
    assert curve.measurable() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert curve.nearest(6) == 3
    curve = LevelCurve(1, MARGIN)
    assert curve.most_informative() == 0
    curve.observe(REFERENCE, 0, quiet_ratios(0.03, 16))
    assert steps_of(curve) == pytest.approx({0: 0.03}, abs=0.003)
