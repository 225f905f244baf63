"""The tests and estimates on paired log-ratios, against scipy, published tables and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm, rankdata, wilcoxon

from asv_bench.compare.judging import judge, weigh
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused
from asv_bench.stats.paired import (
    Alternative,
    equivalence_p,
    hodges_lehmann,
    hodges_lehmann_interval,
    location_p,
    robust_sigma,
    smallest_p,
    wilcoxon_p,
)
from asv_bench.stats.sequential import holm, look_levels, one_sided_look_levels


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("pairs", [1, 5, 12, 24])
def test_wilcoxon_is_scipys_where_scipys_is_exact(pairs: int, alternative: Alternative) -> None:
    values = np.random.default_rng(pairs).normal(0.3, 1, pairs)
    expected = wilcoxon(values, alternative=alternative, method="exact").pvalue
    assert wilcoxon_p(values, alternative) == pytest.approx(expected, rel=1e-12)


def test_wilcoxon_with_ties_and_zeros_is_the_count_over_all_signs() -> None:
    values = np.array([0.02, 0.02, -0.02, 0.03, 0.0, 0.01, 0.03, -0.01])
    ranks = rankdata(np.abs(values))
    moving = [rank for rank, value in zip(ranks, values, strict=True) if value]
    observed = sum(rank for rank, value in zip(ranks, values, strict=True) if value > 0)
    sums = [
        sum(rank for rank, up in zip(moving, signs, strict=True) if up)
        for signs in itertools.product((False, True), repeat=len(moving))
    ]
    greater = sum(total >= observed for total in sums) / len(sums)
    less = sum(total <= observed for total in sums) / len(sums)
    assert wilcoxon_p(values, "greater") == pytest.approx(greater)
    assert wilcoxon_p(values, "less") == pytest.approx(less)
    assert wilcoxon_p(values, "two-sided") == pytest.approx(2 * min(greater, less))


def test_wilcoxon_of_equal_differences_depends_on_their_number_alone() -> None:
    assert wilcoxon_p([0.7] * 12, "two-sided") == smallest_p(12) == 2 / 2**12
    assert wilcoxon_p([0.0] * 12, "two-sided") == 1.0


def counted_location_p(values: np.ndarray, alternative: Alternative) -> float:
    """The same by trying all signs: how often the smaller p-value is as small as observed."""
    magnitudes = np.abs(values)
    signs = itertools.product((-1.0, 1.0), repeat=len(values))

    def smaller(signed: np.ndarray) -> float:
        up, of = int((signed > 0).sum()), int((signed != 0).sum())
        if alternative == "less":
            up = of - up
        sided = "two-sided" if alternative == "two-sided" else "greater"
        sign_p = binomtest(up, of, 0.5, alternative=sided).pvalue
        return min(wilcoxon_p(signed, alternative), sign_p)

    observed = smaller(values)
    as_small = [smaller(magnitudes * np.array(one)) <= observed * (1 + 1e-9) for one in signs]
    return sum(as_small) / len(as_small)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize(
    "values",
    [
        [0.02, 0.03, 0.025, 0.01, 0.04, 0.035, 0.015, -0.05],
        [0.02, 0.02, -0.02, 0.03, 0.0, 0.01, 0.03],
        [-0.01, 0.3, -0.02, -0.03, -0.015, -0.04],
    ],
)
def test_the_better_of_two_tests_is_the_count_over_all_signs(
    values: list[float], alternative: Alternative
) -> None:
    expected = counted_location_p(np.array(values), alternative)
    assert location_p(values, alternative) == pytest.approx(expected)


def test_three_outliers_on_the_wrong_side_do_not_hide_a_difference() -> None:
    values = np.array([0.02 + 0.0001 * number for number in range(21)] + [-0.1, -0.2, -0.3])
    assert wilcoxon_p(values, "two-sided") > 0.01
    assert location_p(values, "two-sided") < 0.0005


def test_hodges_lehmann_is_the_median_of_all_means_of_two() -> None:
    # Walsh averages of 1, 2, 9: 1, 1.5, 2, 5, 5.5, 9.
    assert hodges_lehmann([9.0, 1.0, 2.0]) == 3.5


@pytest.mark.parametrize("pairs", [8, 12, 24])
def test_the_interval_holds_the_shifts_that_wilcoxon_does_not_reject(pairs: int) -> None:
    values = np.random.default_rng(3).normal(0.01, 0.02, pairs)
    low, high = hodges_lehmann_interval(values, 0.95)
    assert low < hodges_lehmann(values) < high
    hair = 1e-9
    for inside in (low + hair, high - hair):
        assert wilcoxon_p(values - inside, "two-sided") > 0.05
    for outside in (low - hair, high + hair):
        assert wilcoxon_p(values - outside, "two-sided") <= 0.05


def test_too_few_pairs_have_no_interval() -> None:
    assert hodges_lehmann_interval([0.01, 0.02, 0.015], 0.95) == (-math.inf, math.inf)


def test_equivalence_is_shown_only_within_the_margin() -> None:
    noise = np.random.default_rng(4).normal(0, 0.002, 24)
    assert equivalence_p(noise, 0.01) < 1e-6
    assert equivalence_p(noise + 0.01, 0.01) > 0.1
    assert equivalence_p(noise + 0.02, 0.01) == pytest.approx(1.0)
    assert equivalence_p(noise - 0.02, 0.01) == pytest.approx(1.0)


def test_an_outlier_does_not_move_the_robust_sigma() -> None:
    values = np.random.default_rng(5).normal(0, 0.01, 400)
    assert robust_sigma(values) == pytest.approx(0.01, rel=0.15)
    values[0] = 5.0
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
    for look, level in zip(looks, one_sided_look_levels(looks, alpha), strict=True):
        above |= sums[:, look - 1] / math.sqrt(look) > norm.isf(level)
    assert above.mean() == pytest.approx(alpha, abs=0.002)


def test_holm_steps_down_and_stops_at_the_first_that_fails() -> None:
    def level(share: int) -> float:
        return 0.05 / share

    assert holm({"a": 0.01, "b": 0.02, "c": 0.04}, level, 3) == {"a", "b", "c"}
    assert holm({"a": 0.01, "b": 0.03, "c": 0.04}, level, 3) == {"a"}
    assert holm({"a": 0.02, "b": 0.001}, level, 2) == {"a", "b"}
    # Hypotheses that are not tested now count all the same.
    assert holm({"a": 0.02}, level, 3) == set()


def test_every_look_of_the_plan_can_decide() -> None:
    plan = ComparisonPlan()
    for look, pairs in enumerate(plan.looks):
        assert smallest_p(pairs) <= plan.difference_level(look, 1)
        assert smallest_p(pairs) / 2 <= plan.equivalence_level(look)


@pytest.mark.parametrize(
    ("cap", "looks"), [(24, (12, 16, 20, 24)), (12, (12,)), (10, (10,)), (48, (24, 32, 40, 48))]
)
def test_another_cap_keeps_the_fractions_that_can_decide(cap: int, looks: tuple[int, ...]) -> None:
    assert ComparisonPlan.with_cap(cap).looks == looks


def test_a_cap_that_could_never_decide_is_refused() -> None:
    with pytest.raises(Refused, match="take at least 10"):
        ComparisonPlan.with_cap(9)


@pytest.mark.parametrize(("benchmarks", "least"), [(1, 10), (8, 13), (9, 15), (19, 16), (33, 17)])
def test_the_least_cap_is_the_first_that_can_tell_a_benchmark_from_the_others(
    benchmarks: int, least: int
) -> None:
    assert ComparisonPlan.least_cap(benchmarks) == least
    names = [str(number) for number in range(benchmarks)]
    for cap in range(max(10, least - 2), least + 2):
        plan = ComparisonPlan.with_cap(cap)
        called = set()
        for look, pairs in enumerate(plan.looks):
            # As clear as pairs can be, in one benchmark.
            clear = weigh([math.log(1.5 + pair / 1000) for pair in range(pairs)], plan)
            evidence = dict.fromkeys(names, weigh([0.5 * (-1) ** i for i in range(pairs)], plan))
            called |= set(judge(evidence | {"0": clear}, look, benchmarks, plan).values())
        assert (Verdict.SLOWER in called) == plan.can_differ(benchmarks) == (cap >= least)
