"""What is settled before the first pair, what builds show, and what three verdicts say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs, pair_of, seconds

from asv_bench.cli.fixed import Repair, State
from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.judging import judge, weigh
from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.measure.rounds import two_cells

BUILT_PLAN = ComparisonPlan().with_margin(0.02)
NOISE = np.random.default_rng(3).normal(0, 0.002, 100).tolist()


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


@dataclass
class BuiltPairs(ScriptedPairs):
    """Pairs that measure one build of either end after the other."""

    builds: int = 3
    drift: Sequence[float] = (1.0,)
    """Of the machine, by pair."""

    def pair(self, *arguments, **more):
        number = len(self.asked)
        build, state = number % self.builds, self.drift[number % len(self.drift)]
        found = super().pair(*arguments, **more)
        return {
            name: replace(
                pair,
                base=replace(pair.base, build=build, value=pair.base.value * state),
                head=replace(pair.head, build=build, value=pair.head.value * state),
            )
            for name, pair in found.items()
        }


def compare(*effects: float, drift: Sequence[float] = (1.0,)) -> tuple[Comparison, ScriptedPairs]:
    """The answer about builds of the head that differ from the base's by these effects."""
    count = len(effects)
    source = BuiltPairs(
        lambda _, number: (1 + effects[number % count]) * math.exp(NOISE[number]),
        builds=count,
        drift=drift,
    )
    (answer,) = CommitComparison(two_cells(BASE, HEAD), seconds("b"), BUILT_PLAN).run(source)
    return answer, source


@pytest.mark.parametrize("effects", [(0.0, 0.05, 0.0), (0.05, 0.05, 0.0), (0.0, -0.05, 0.0)])
def test_what_some_builds_show_is_said_as_that_and_ends_the_comparison(effects) -> None:
    answer, source = compare(*effects)
    assert answer.verdict is Verdict.INCONCLUSIVE
    size = f"{100 * max(effects, key=abs):+.0f}"
    assert f"is seen in {sum(map(bool, effects))} of 3 builds: luck of a build" in answer.reason
    assert float(answer.reason.split(" %")[0]) == pytest.approx(float(size), abs=0.5)
    assert len(source.asked) < BUILT_PLAN.cap


@pytest.mark.parametrize(("effect", "verdict"), [(0.05, "slower"), (-0.05, "faster")])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 12])
def test_what_all_builds_show_is_a_change(count: int, effect: float, verdict: str) -> None:
    answer, _ = compare(*[effect] * count)
    assert answer.verdict == verdict
    assert ("luck may show as much in" in answer.reason) == (count < 5)
    assert (f"seen in {count} of {count} builds" in answer.reason) == (count < 6)


def test_two_builds_tell_nothing_and_one_says_nothing_of_builds() -> None:
    answer, _ = compare(0.05, 0.05)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert "is seen in 2 of 2 builds" in answer.reason
    (plain,) = CommitComparison(two_cells(BASE, HEAD), seconds("b"), BUILT_PLAN).run(
        ScriptedPairs(lambda _, number: 1.05 * math.exp(NOISE[number]))
    )
    assert (plain.verdict, plain.reason) == (Verdict.SLOWER, "")


def test_builds_that_lie_apart_widen_the_interval_and_are_not_equivalent() -> None:
    effects = (0.012, -0.012, 0.0)
    answer, _ = compare(*effects)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert "builds of one end lie 2." in answer.reason
    assert answer.interval[0] < min(effects) + 0.002 < max(effects) - 0.002 < answer.interval[1]
    assert compare(0.0, 0.001, -0.001)[0].verdict is Verdict.EQUIVALENT


def test_builds_of_single_lives_are_judged_as_lives_are_beside_each_other() -> None:
    drift = np.exp(np.random.default_rng(1).normal(0, 0.1, 30)).tolist()
    answer, _ = compare(*[0.05] * 30, drift=drift)
    assert (answer.verdict, answer.reason) == (Verdict.SLOWER, "")
    # Of twelve, each is met by lives at other times.
    assert compare(*[0.05] * 12, drift=drift)[0].verdict is Verdict.INCONCLUSIVE
