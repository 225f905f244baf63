"""What is settled before the first pair, and what three verdicts say of a regression."""

from __future__ import annotations

import math

import pytest
from simulated_pairs import pair_of

from asv_bench.compare.judging import judge, weigh
from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.repair import Repair, State
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused


@pytest.mark.parametrize("cap", [6, 7, 10, 12, 24, 30, 96])
def test_every_look_can_decide_and_together_they_spend_no_more_than_is_allowed(cap: int) -> None:
    plan = ComparisonPlan.with_cap(cap)
    assert plan.cap == cap
    spent = shown = 0.0
    for number, look in enumerate(plan.looks):
        difference, equivalence = plan.difference_level(number, 1), plan.equivalence_level(number)
        assert look.test.least_p(look.pairs) <= difference
        if look.pairs > 3:  # with three pairs nothing is called equivalent
            assert look.test.least_p(look.pairs) <= equivalence
        if look.test is Criterion.LOCATION:
            # They get what is left, and none of them may spend more.
            assert 2 * difference <= (plan.alpha - spent) * (1 + 1e-9)
            assert equivalence <= (plan.equivalence_alpha - shown) * (1 + 1e-9)
        else:
            spent += 2 * difference
            shown += equivalence
    assert spent <= plan.alpha * (1 + 1e-9)
    assert shown <= plan.equivalence_alpha * (1 + 1e-9)


@pytest.mark.parametrize(
    "benchmarks", [1, 8, *(pytest.param(n, marks=pytest.mark.thorough) for n in (19, 33))]
)
def test_a_plan_knows_whether_a_benchmark_can_be_told_from_the_others(benchmarks: int) -> None:
    with pytest.raises(Refused, match="take at least 7"):
        ComparisonPlan.with_cap(5)
    for cap in range(6, 20):
        plan = ComparisonPlan.with_cap(cap)
        called = set()
        for number, look in enumerate(plan.looks):
            # As clear as pairs can be, in one benchmark.
            clear = [pair_of(1 + at / 1e6, 1.5 + at / 1000) for at in range(look.pairs)]
            vague = [pair_of(1 + at / 1e6, math.exp(0.5 * (-1) ** at)) for at in range(look.pairs)]
            evidence = dict.fromkeys(map(str, range(benchmarks)), weigh(vague, plan, look.test))
            evidence["0"] = weigh(clear, plan, look.test)
            called |= set(judge(evidence, number, dict.fromkeys(evidence), plan).values())
        assert (Verdict.SLOWER in called) == plan.can_differ(benchmarks)


VERDICTS = {
    "+": Verdict.SLOWER,
    "-": Verdict.FASTER,
    "=": Verdict.EQUIVALENT,
    "?": Verdict.INCONCLUSIVE,
    "s": Verdict.SAME,
    "0": Verdict.NOT_MEASURED,
}


@pytest.mark.parametrize(
    ("verdicts", "state", "is_slower"),
    [
        ("+=-", State.WHOLLY, False),
        ("++-", State.PARTLY, True),
        ("++=", State.NOT, True),
        ("++?", State.NOT_WHOLLY, True),
        # Within the margin of both: too small a regression to tell.
        ("+==", State.INCONCLUSIVE, False),
        ("+?-", State.INCONCLUSIVE, False),
        # Verdicts that contradict each other.
        ("+=+", State.INCONCLUSIVE, False),
        ("==?", State.NO_REGRESSION, False),
        ("=+?", State.NO_REGRESSION, True),
        ("?+?", State.INCONCLUSIVE, True),
        # Two of the three hold the same: nobody is accused without a regression that was measured.
        ("++s", State.NOT, True),
        ("??s", State.INCONCLUSIVE, False),
        ("00s", State.NOT_MEASURED, False),
        ("s00", State.NO_REGRESSION, False),
        ("0s0", State.WHOLLY, False),
    ],
)
def test_the_state_of_a_regression_follows_from_three_verdicts(
    verdicts: str, state: State, is_slower: bool
) -> None:
    answer = Repair("step", *(Comparison("step", "a", "b", VERDICTS[one]) for one in verdicts))
    assert (answer.state, answer.is_slower) == (state, is_slower)
