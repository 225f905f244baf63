"""The tests for few pairs, against enumeration and scipy; how often they err is simulated apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from asv_bench.stats.few_pairs import (
    CAUTION,
    are_separate,
    fits_pool,
    guarded_rank_sum_p,
    pooled_p,
    rank_sum_p,
    separation_p,
)


@pytest.mark.parametrize("seed", range(4))
def test_the_rank_sum_is_scipys(seed: int) -> None:
    random = np.random.default_rng(seed)
    base, head = random.normal(0, 1, 8), random.normal(0.5, 1, 6)
    expected = mannwhitneyu(head, base, alternative="greater", method="exact").pvalue
    assert rank_sum_p(base, head) == pytest.approx(expected)
    # Equal figures are no evidence.
    assert rank_sum_p(np.ones(8), np.ones(8)) == 1.0
    assert separation_p(np.ones(6), np.ones(6)) == 1.0


def spread(pairs: int, low: float, width: float) -> np.ndarray:
    return low + width * np.linspace(0, 1, pairs)


@pytest.mark.parametrize(("pairs", "ranges"), [(3, 16.0), (4, 2.0), (5, 1.5), (6, 1.0), (10, 1.0)])
@pytest.mark.parametrize(("base_width", "head_width"), [(1.0, 1.0), (2.0, 1.0), (1.0, 2.4)])
def test_commits_are_separate_by_a_gap_wide_beside_either_range(
    pairs: int, ranges: float, base_width: float, head_width: float
) -> None:
    base = spread(pairs, 0.0, base_width)
    needed = base_width + ranges * max(base_width, head_width)
    for gap, is_separate in ((1.01, True), (0.99, False), (-1.0, False)):
        head = spread(pairs, gap * needed, head_width)
        assert are_separate(base, head) == is_separate
        ranks = guarded_rank_sum_p(base, head)
        assert separation_p(base, head) == (4.0**-pairs if is_separate else ranks)
        assert ranks >= 4.0**-pairs


@pytest.mark.parametrize(("pairs", "ranges"), [(3, 16.0), (4, 8.0), (5, 4.0), (6, 2.0), (7, 1.0)])
def test_where_one_scatters_much_wider_the_gap_is_wider(pairs: int, ranges: float) -> None:
    wide, narrow = spread(pairs, 0.0, 1.0), spread(pairs, 0.0, 0.3)
    for base, head, top in ((wide, narrow, 1.0), (narrow, wide, 0.3)):
        assert are_separate(base, head + top + 1.01 * ranges)
        assert not are_separate(base, head + top + 0.99 * ranges)


def test_ranks_of_commits_that_scatter_unlike_are_evidence_only_far_apart() -> None:
    base, head = spread(8, 0.0, 0.1), spread(8, 0.15, 1.0)
    assert rank_sum_p(base, head) < 1e-4
    assert guarded_rank_sum_p(base, head) == 1.0
    assert guarded_rank_sum_p(base, head + 1.0) == rank_sum_p(base, head)
    # One process far out makes no commit scatter unlike the other.
    alike = np.where(np.arange(8) == 7, 9.0, spread(8, 0.15, 0.1))
    assert guarded_rank_sum_p(base, alike) == rank_sum_p(base, alike)


def test_pooled_ranks_are_the_count_over_all_choices_of_ranks_and_signs() -> None:
    base, head = np.array([0.0, 0.01, 0.005]), np.array([1.0, 1.02, 1.005])
    pool = np.array([0.01, -0.02, 0.7, -0.03, 0.9]) / CAUTION
    # Differences 1, 1.01 and 1 lie above all of the pool: ranks 6, 7 and 8.
    head[2] = base[2] + 1.0001
    sums = [
        sum(np.array(signs) * ranks)
        for ranks in itertools.combinations(range(1, 9), 3)
        for signs in itertools.product((-1, 1), repeat=3)
    ]
    assert pooled_p(base, head, pool) == pytest.approx(np.mean(np.array(sums) >= 6 + 7 + 8))
    wider = 10 * pool
    assert pooled_p(base, head, wider) > pooled_p(base, head, pool)
    # Whatever the pool: commits that are not separate are no evidence.
    assert pooled_p(base, base + np.array([0.01, 0.02, 0.03]), pool / 1e6) == 1.0


def test_a_pool_tighter_than_this_run_does_not_serve() -> None:
    pool = np.random.default_rng(1).normal(0, 0.001, 40)
    assert fits_pool(np.array([0.001, -0.002]), pool)
    assert not fits_pool(np.array([0.0001, 0.02]), pool)
    assert not fits_pool(np.array([0.0025, -0.0025, 0.0025]), pool)


def test_many_comparisons_at_once_are_each_by_itself() -> None:
    random = np.random.default_rng(2)
    base, head, pool = (random.normal(0, 1, (50, size)) for size in (4, 4, 40))
    head += 6
    for test in (rank_sum_p, separation_p):
        assert list(test(base, head)) == [test(b, h) for b, h in zip(base, head, strict=True)]
    alone = [pooled_p(b, h, p) for b, h, p in zip(base, head, pool, strict=True)]
    assert list(pooled_p(base, head, pool)) == alone
