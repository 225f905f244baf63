"""Tests, estimates and levels, against scipy, published tables and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, mannwhitneyu, norm, rankdata, ttest_ind, wilcoxon

from asv_bench.cli.judge import plan_of_files
from asv_bench.stats.families import look_levels, rejected_in_turns
from asv_bench.stats.paired import (
    CAUTION,
    Share,
    are_separate,
    fits_pool,
    guarded_rank_sum_p,
    hodges_lehmann,
    location_p,
    pooled_p,
    rank_sum_p,
    robust_sigma,
    separation_p,
    share_in_rounds,
    shift_interval,
    undisturbed,
    unpaired_p,
    unpaired_shift,
)


def wilcoxon_p(values: np.ndarray, alternative: str) -> float:
    """Of Wilcoxon's signed-rank test, by trying all signs; by scipy where those are too many."""
    if len(values) > 8:
        return float(wilcoxon(values, alternative=alternative, method="exact").pvalue)
    ranks = rankdata(np.abs(values)) * (values != 0)
    signs = np.array(list(itertools.product((-1, 1), repeat=len(values))))
    sums, observed = signs @ ranks, np.sign(values) @ ranks
    greater, less = np.mean(sums >= observed - 1e-9), np.mean(sums <= observed + 1e-9)
    return float(greater if alternative == "greater" else min(1, 2 * min(greater, less)))


def counted_location_p(values: np.ndarray, alternative: str) -> float:
    """The same by trying all signs: how often the smaller p-value is as small as observed."""
    magnitudes = np.abs(values)
    signs = itertools.product((-1.0, 1.0), repeat=len(values))

    def smaller(signed: np.ndarray) -> float:
        up, of = int((signed > 0).sum()), int((signed != 0).sum())
        sign_p = binomtest(up, of, 0.5, alternative=alternative).pvalue
        return min(wilcoxon_p(signed, alternative), sign_p)

    observed = smaller(values)
    as_small = [smaller(magnitudes * np.array(one)) <= observed * (1 + 1e-9) for one in signs]
    return sum(as_small) / len(as_small)


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
@pytest.mark.parametrize(
    "values",
    [
        [0.02, 0.03, 0.025, 0.01, 0.04, 0.035, 0.015, -0.05],
        [0.02, 0.02, -0.02, 0.03, 0.0, 0.01, 0.03],
        [-0.01, 0.3, -0.02, -0.03, -0.015, -0.04],
    ],
)
def test_the_better_of_two_tests_is_the_count_over_all_signs(values, alternative) -> None:
    expected = counted_location_p(np.array(values), alternative)
    found = location_p(values, is_two_sided=alternative == "two-sided")
    assert found == pytest.approx(expected)


def test_three_outliers_on_the_wrong_side_do_not_hide_a_difference() -> None:
    values = np.array([0.02 + 0.0001 * number for number in range(21)] + [-0.1, -0.2, -0.3])
    assert wilcoxon_p(values, "two-sided") > 0.01
    assert location_p(values, is_two_sided=True) < 0.0005


@pytest.mark.parametrize("pairs", [8, 12, 24])
def test_the_interval_holds_the_shifts_that_wilcoxon_does_not_reject(pairs: int) -> None:
    values = np.random.default_rng(3).normal(0.01, 0.02, pairs)
    low, high, confidence = shift_interval(values, 0.95)
    assert low < hodges_lehmann(values) < high
    assert confidence == 0.95
    hair = 1e-9
    for inside in (low + hair, high - hair):
        assert wilcoxon_p(values - inside, "two-sided") > 0.05
    for outside in (low - hair, high + hair):
        assert wilcoxon_p(values - outside, "two-sided") <= 0.05


def test_of_a_few_pairs_the_shift_is_the_median_of_all_means_of_two_and_the_interval_all() -> None:
    # Walsh averages of 1, 2, 9: 1, 1.5, 2, 5, 5.5, 9.
    assert hodges_lehmann([9.0, 1.0, 2.0]) == 3.5
    assert shift_interval([0.01, 0.02, 0.015], 0.95) == (0.01, 0.02, 0.75)


def test_a_share_covers_the_truth_as_often_as_it_says_and_may_have_no_bound() -> None:
    def share(whole: np.ndarray, part: np.ndarray) -> Share:
        # Of a round that only one side has, there is nothing to say.
        return share_in_rounds({**dict(enumerate(whole)), 99: 9.0}, dict(enumerate(part)), 0.95)

    noise = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        # What both shifts have in common widens neither side of the ratio.
        common = noise.normal(0, 0.02, 12)
        whole = 0.2 + common + noise.normal(0, 0.01, 12)
        one = share(whole, 0.1 + common / 2 + noise.normal(0, 0.01, 12))
        low, high = one.interval
        assert low <= one.value <= high
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 300 <= 0.99
    whole, part = np.array([0.01, 0.02, -0.001, 0.005]), np.array([0.1, 0.0, 0.05, -0.04])
    assert share(whole, part).interval[1] == float("inf")
    assert share_in_rounds({1.0: 0.1}, {2.0: 0.1}, 0.95) is None


def test_what_disturbs_windows_of_one_process_or_both_moves_nothing() -> None:
    base, head = np.full(12, 2.0), np.full(12, 2.2)
    base[[3, 7]] *= 5
    head[0] *= 9
    assert undisturbed(base, head) == pytest.approx((2.0, 2.2))
    load = np.exp(np.random.default_rng(0).normal(0, 0.5, 40))
    of_base, of_head = undisturbed(load, 1.02 * load)
    assert of_head / of_base == pytest.approx(1.02)
    # Windows that only one has are left out.
    assert undisturbed([1.0, 1.0, 900.0], [3.0, 3.0]) == pytest.approx((1.0, 3.0))


def test_an_outlier_does_not_move_the_robust_sigma() -> None:
    values = np.random.default_rng(5).normal(0, 0.01, 400)
    for outlier in (values[0], 5.0):
        values[0] = outlier
        assert robust_sigma(values) == pytest.approx(0.01, rel=0.15)


def obrien_fleming(fraction: float, alpha: float) -> float:
    """Lan & DeMets' approximation, for each side of a two-sided test."""
    return float(2 * 2 * norm.sf(norm.isf(alpha / 4) / math.sqrt(fraction)))


def pocock(fraction: float, alpha: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * fraction)


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        (obrien_fleming, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        (pocock, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ],
)
def test_bounds_are_the_published_ones(spending, published) -> None:
    """Five equal looks at 0.05, as in Reboussin et al. (2000) and the R package `ldbounds`."""
    bounds = [norm.isf(level / 2) for level in look_levels((1, 2, 3, 4, 5), 0.05, spending)]
    assert bounds == pytest.approx(published, abs=2e-3)


def test_looking_four_times_errs_as_often_as_is_allowed() -> None:
    """By simulation of normal statistics, at a level that is quick to see."""
    looks, alpha = (12, 16, 20, 24), 0.05
    sums = np.cumsum(np.random.default_rng(6).normal(size=(200_000, 24)), axis=1)
    crossed = np.zeros(len(sums), bool)
    for look, level in zip(looks, look_levels(looks, alpha), strict=True):
        crossed |= np.abs(sums[:, look - 1]) / math.sqrt(look) > norm.isf(level / 2)
    assert crossed.mean() == pytest.approx(alpha, abs=0.002)
    above = np.zeros(len(sums), bool)
    for look, level in zip(looks, look_levels(looks, 2 * alpha), strict=True):
        above |= sums[:, look - 1] / math.sqrt(look) > norm.isf(level / 2)
    assert above.mean() == pytest.approx(alpha, abs=0.002)


def rejected(
    *p_values: float | tuple[float, ...], turns: tuple[int, ...] = (0,), answered: str = ""
) -> list[list[bool]]:
    """Of families, at 0.05; `answered` has "!" for each rejected before, "=" for each closed."""
    values = np.array(p_values).reshape(-1, len(turns))
    before = np.array([*answered.ljust(values.size)]).reshape(values.shape)
    found = rejected_in_turns(
        values, lambda share: 0.05 / share, turns, before == "!", before != " ", before != "0"
    )
    return found.tolist()


def test_of_families_of_one_holms_procedure_steps_down_and_stops_at_the_first_that_fails() -> None:
    def of(*p_values: float, answered: str = "") -> list[bool]:
        return [bool(one) for (one,) in rejected(*p_values, answered=answered)]

    assert of(0.01, 0.04, 0.02) == [True, True, True]
    assert of(0.04, 0.01, 0.03) == [False, True, False]
    assert of(0.02, 0.001) == [True, True]
    # Hypotheses that are not tested now count all the same, but those that were rejected, and those
    # of which nothing can be measured.
    assert of(0.02, np.nan, np.nan, answered=" ==") == [False, False, False]
    assert of(0.02, np.nan, 0.01) == [True, False, True]
    assert of(0.02, np.nan, np.nan, answered=" !0") == [True, True, False]


@pytest.mark.parametrize(
    ("p_values", "answered", "expected"),
    [
        # At the first, nearly all of the level; then each of the others has all of it.
        ((0.045, 0.049, 0.9), "", [True, True, False]),
        ((0.9, 0.02, 0.02), "", [False, False, False]),
        ((np.nan, 0.049, 0.049), "!  ", [True, True, True]),
        # A difference that is beyond doubt is seen at once, and leads to no other.
        ((0.9, 0.0004, 0.01), "", [False, True, False]),
        # Without a difference of the first, both may be none, and share.
        ((np.nan, 0.026, 0.9), "=  ", [False, False, False]),
        ((np.nan, 0.024, 0.04), "=  ", [False, True, True]),
    ],
)
def test_a_family_in_turns_does_not_divide_its_level(p_values, answered, expected) -> None:
    assert rejected(p_values, turns=(0, 1, 1), answered=answered) == [expected]
    # Among two families half of it, until one of them has nothing left.
    other = (0.9, 0.9, 0.9)
    halved = tuple(one / 2 for one in p_values)
    answered = answered.ljust(3)
    for twice in (
        rejected(halved, other, turns=(0, 1, 1), answered=answered),
        rejected(p_values, other, turns=(0, 1, 1), answered=answered + "!!!"),
    ):
        assert twice[0] == expected
    assert sum(rejected(p_values, other, turns=(0, 1, 1), answered=answered)[0]) <= sum(expected)


def test_many_comparisons_at_once_are_each_tested_alone() -> None:
    """Also where only some have ties or zeros, whose ranks are other ones."""
    many = np.random.default_rng(8).normal(0.5, 1, (2, 3, 9))
    many[0, 1] = np.round(many[0, 1])
    many[1, 2, :4] = 0.7
    low, high, _ = shift_interval(many, 0.95)
    for is_two_sided in (True, False):
        found = location_p(many, is_two_sided=is_two_sided)
        for place in np.ndindex(2, 3):
            alone = many[place]
            assert found[place] == location_p(alone, is_two_sided=is_two_sided)
            assert (low[place], high[place]) == shift_interval(alone, 0.95)[:2]
            assert hodges_lehmann(many)[place] == hodges_lehmann(alone)
    draws = np.random.default_rng(2)
    base, head, pool = (draws.normal(0, 1, (50, size)) for size in (4, 4, 40))
    head += 6
    for test in (rank_sum_p, separation_p):
        assert list(test(base, head)) == [test(b, h) for b, h in zip(base, head, strict=True)]
    each = [pooled_p(b, h, p) for b, h, p in zip(base, head, pool, strict=True)]
    assert list(pooled_p(base, head, pool)) == each


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


@pytest.mark.parametrize(("pairs", "ranges"), [(3, 16.0), (4, 4.0), (5, 2.0), (6, 1.0), (8, 0.25)])
@pytest.mark.parametrize(("base_width", "head_width"), [(1.0, 1.0), (2.0, 1.0), (1.0, 1.9)])
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
    base, alike = spread(10, 0.0, 0.1), spread(10, 0.11, 0.1)
    alike[-1] = 9.0
    assert guarded_rank_sum_p(base, alike) == rank_sum_p(base, alike)
    # Of eight, half of a skewed commit's may lie beyond all of the other's by chance.
    assert guarded_rank_sum_p(base[:8], alike[:8] - 0.02) == 1.0


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


RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(("base", "head"), [(3, 3), (5, 5), (3, 8), (9, 7)])
def test_both_tests_must_tell(base: int, head: int) -> None:
    for shift in (0.0, 1.0, 4.0):
        low, high = RANDOM.normal(0, 1, base), RANDOM.normal(shift, 2, head)
        welch = ttest_ind(high, low, equal_var=False, alternative="greater").pvalue
        ranks = mannwhitneyu(high, low, alternative="greater", method="exact").pvalue
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
        for picked in itertools.combinations(joined, head)
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
