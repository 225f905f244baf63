"""Tests and intervals of two sides that nothing pairs, beside scipy's and by counting."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy

from asv_bench.compare.files import plan_of_files
from asv_bench.stats.unpaired import unpaired_p, unpaired_shift

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(("base", "head"), [(3, 3), (5, 5), (3, 8), (9, 7)])
def test_both_tests_must_tell(base: int, head: int) -> None:
    for shift in (0.0, 1.0, 4.0):
        low, high = RANDOM.normal(0, 1, base), RANDOM.normal(shift, 2, head)
        welch = scipy.stats.ttest_ind(high, low, equal_var=False, alternative="greater").pvalue
        ranks = scipy.stats.mannwhitneyu(high, low, alternative="greater", method="exact").pvalue
        expected = welch if high.min() > low.max() else max(welch, ranks)
        assert unpaired_p(low, high) == pytest.approx(expected, rel=1e-9)


def test_sides_without_scatter_are_told_apart_and_the_same_are_not() -> None:
    alike, more = np.zeros(5), np.full(5, 0.1)
    assert unpaired_p(alike, more) < 1e-6
    assert unpaired_p(alike, alike) >= 0.5


@pytest.mark.parametrize(("base", "head"), [(3, 3), (4, 4), (5, 6)])
def test_an_interval_holds_what_the_exact_test_does_not_reject(base: int, head: int) -> None:
    low_side, high_side = RANDOM.normal(0, 1, base), RANDOM.normal(1, 1, head)
    shift, low, high, reached = unpaired_shift(low_side, high_side, 0.95)
    differences = np.sort(np.subtract.outer(high_side, low_side).ravel())
    # In how many of all splits into two sides as few differences are below 0 as below the bound.
    below = int((differences < low).sum())
    joined = range(base + head)
    counts = [
        sum(one > other for one in picked for other in set(joined) - set(picked))
        for picked in combinations(joined, head)
    ]
    chance = np.mean([count <= below for count in counts])
    assert 1 - 2 * chance == pytest.approx(reached) if base == 3 else chance <= 0.025
    assert low <= shift <= high
    assert shift == np.median(differences)


@pytest.mark.parametrize(("files", "least", "most"), [(5, 0.8, 0.9), (6, 0.9, 0.97)])
def test_a_drop_of_15_percent_is_told_in_a_noise_of_4(
    files: int, least: float, most: float
) -> None:
    shape, plan = (20_000, files), plan_of_files(files, files, 0.01)
    random = np.random.default_rng(files)
    base, level = random.normal(0, 0.04, shape), plan.difference_level(0, 1)
    told = unpaired_p(base, random.normal(-np.log(0.85), 0.04, shape)) <= level
    assert least < told.mean() < most
    head = random.normal(0, 0.04, shape)
    false = np.minimum(unpaired_p(base, head), unpaired_p(head, base)) <= level
    assert false.mean() < 0.003


def test_fewer_than_five_files_have_the_level_of_two_modes() -> None:
    levels = {count: plan_of_files(count, 9, 0.01).alpha for count in (3, 4, 5, 9)}
    assert levels == {3: 1 / 32, 4: 1 / 128, 5: 0.002, 9: 0.002}
