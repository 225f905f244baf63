"""Builds as a level above lives: what one of them shows, and what all of them show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs, seconds

from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.rounds import two_cells

PLAN = ComparisonPlan().with_margin(0.02)
NOISE = np.random.default_rng(3).normal(0, 0.002, 100).tolist()


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
    (answer,) = CommitComparison(two_cells(BASE, HEAD), seconds("b"), PLAN).run(source)
    return answer, source


@pytest.mark.parametrize("effects", [(0.0, 0.05, 0.0), (0.05, 0.05, 0.0), (0.0, -0.05, 0.0)])
def test_what_some_builds_show_is_said_as_that_and_ends_the_comparison(effects) -> None:
    answer, source = compare(*effects)
    assert answer.verdict is Verdict.INCONCLUSIVE
    size = f"{100 * max(effects, key=abs):+.0f}"
    assert f"is seen in {sum(map(bool, effects))} of 3 builds: luck of a build" in answer.reason
    assert float(answer.reason.split(" %")[0]) == pytest.approx(float(size), abs=0.5)
    assert len(source.asked) < PLAN.cap


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
    (plain,) = CommitComparison(two_cells(BASE, HEAD), seconds("b"), PLAN).run(
        ScriptedPairs(lambda _, number: 1.05 * math.exp(NOISE[number]))
    )
    assert (plain.verdict, plain.reason) == (Verdict.SLOWER, "")


def test_builds_that_lie_apart_widen_the_interval_and_are_not_equivalent() -> None:
    effects = (0.012, -0.012, 0.0)
    answer, _ = compare(*effects)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert "builds of one end lie 2." in answer.reason
    assert answer.interval is not None
    assert answer.interval[0] < min(effects) + 0.002 < max(effects) - 0.002 < answer.interval[1]
    assert compare(0.0, 0.001, -0.001)[0].verdict is Verdict.EQUIVALENT


def test_builds_of_single_lives_are_judged_as_lives_are_beside_each_other() -> None:
    drift = np.exp(np.random.default_rng(1).normal(0, 0.1, 30)).tolist()
    answer, _ = compare(*[0.05] * 30, drift=drift)
    assert (answer.verdict, answer.reason) == (Verdict.SLOWER, "")
    # Of twelve, each is met by lives at other times.
    assert compare(*[0.05] * 12, drift=drift)[0].verdict is Verdict.INCONCLUSIVE
