"""The plan of a comparison: its looks can decide, and its caps are ones that can."""

from __future__ import annotations

import math

import pytest
from simulated_pairs import pair_of

from asv_bench.compare.judging import judge, weigh
from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused


def pairs_of(log_ratios: list[float]) -> list:
    return [pair_of(1 + place / 1e6, math.exp(one)) for place, one in enumerate(log_ratios)]


@pytest.mark.parametrize("cap", [6, 7, 10, 12, 30, 96])
def test_every_look_of_a_plan_can_decide(cap: int) -> None:
    plan = ComparisonPlan.with_cap(cap)
    for number, look in enumerate(plan.looks):
        assert look.test.least_p(look.pairs) <= plan.difference_level(number, 1)
        if look.pairs > 3:  # with three pairs nothing is called equivalent
            assert look.test.least_p(look.pairs) <= plan.equivalence_level(number)


@pytest.mark.parametrize("cap", [6, 7, 10, 12, 24, 30, 96])
def test_the_looks_together_spend_no_more_than_is_allowed(cap: int) -> None:
    plan = ComparisonPlan.with_cap(cap)
    early = [
        number for number, look in enumerate(plan.looks) if look.test is not Criterion.LOCATION
    ]
    spent = sum(2 * plan.difference_level(number, 1) for number in early)
    shown = sum(plan.equivalence_level(number) for number in early)
    # What is left goes to the looks at location, none of which may spend more.
    for number in range(len(early), len(plan.looks)):
        assert 2 * plan.difference_level(number, 1) <= (plan.alpha - spent) * (1 + 1e-9)
        assert plan.equivalence_level(number) <= (plan.equivalence_alpha - shown) * (1 + 1e-9)
    assert spent <= plan.alpha * (1 + 1e-9)
    assert shown <= plan.equivalence_alpha * (1 + 1e-9)


@pytest.mark.parametrize(
    ("cap", "looks"),
    [
        (30, (3, 4, 5, 6, 8, 10, 14, 18, 24, 30)),
        (24, (3, 4, 5, 6, 8, 10, 14, 20, 24)),
        (12, (3, 4, 5, 6, 8, 10, 12)),
        (7, (3, 4, 5, 6, 7)),
        (6, (3, 4, 5, 6)),
    ],
)
def test_another_cap_keeps_the_looks_that_can_decide(cap: int, looks: tuple[int, ...]) -> None:
    assert tuple(look.pairs for look in ComparisonPlan.with_cap(cap).looks) == looks


def test_a_cap_that_could_never_decide_is_refused() -> None:
    with pytest.raises(Refused, match="take at least 7"):
        ComparisonPlan.with_cap(5)


@pytest.mark.parametrize(
    "benchmarks", [1, 2, 8, *(pytest.param(n, marks=pytest.mark.thorough) for n in (19, 33))]
)
def test_from_the_least_cap_on_a_benchmark_can_be_told_from_the_others(
    benchmarks: int,
) -> None:
    least = ComparisonPlan.least_cap(benchmarks)
    names = [str(number) for number in range(benchmarks)]
    for cap in range(max(6, least - 2), least + 6):
        plan = ComparisonPlan.with_cap(cap)
        called = set()
        for number, look in enumerate(plan.looks):
            # As clear as pairs can be, in one benchmark.
            clear = pairs_of([math.log(1.5 + pair / 1000) for pair in range(look.pairs)])
            vague = pairs_of([0.5 * (-1) ** pair for pair in range(look.pairs)])
            evidence = dict.fromkeys(names, weigh(vague, plan, look.test))
            evidence["0"] = weigh(clear, plan, look.test)
            called |= set(judge(evidence, number, benchmarks, plan).values())
        assert (Verdict.SLOWER in called) == plan.can_differ(benchmarks)
        assert cap < least or plan.can_differ(benchmarks)
