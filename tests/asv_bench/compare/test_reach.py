"""The smallest change that a comparison finds 9 times of 10, from pairs of a commit with itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from measured_rounds import pair_of_lives
from simulated_pairs import BASE

from asv_bench.compare.noise_pools import LEAST_PAIRS, MetricNoise, Pool, noise_of, reach_of
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.measure.samples import Pair
from tests.simulations.commits import SIMULATED_BENCHMARK, SimulatedCommits
from tests.simulations.compare import simulate
from tests.simulations.noise import Noise as Made
from tests.simulations.noise import Situation

PLAN = ComparisonPlan()
METRIC = "a metric"


def measured(deviation: float, count: int, *, in_turns: bool = False) -> list[Pair]:
    """Pairs of a commit with itself, of 10 s each, whose processes vary by so much.

    In turns, both processes take that long.
    """
    made = Made(process=deviation, drift=0.0, outliers=0.0)
    source = SimulatedCommits({BASE: 0.0}, made, seed=3)
    pairs = [
        pair_of_lives(source, BASE, BASE, head_first=number % 4 in (1, 2))[SIMULATED_BENCHMARK]
        for number in range(count)
    ]
    spans = ((0.0, 9.5), (0.5, 9.5)) if in_turns else ((0.0, 4.0), (4.0, 6.0))
    base, head = ({"started_at": begun, "process_s": seconds} for begun, seconds in spans)
    return [
        replace(pair, base=replace(pair.base, **base), head=replace(pair.head, **head))
        for pair in pairs
    ]


def noise(pairs: Sequence[Pair], at_once: int = 1, devices: int = 1) -> MetricNoise:
    return noise_of(METRIC, [pairs], PLAN, (15, 1, 3), at_once=at_once, devices=devices)


def effects(found: MetricNoise) -> list[float]:
    return [reach.effect or float("inf") for reach in found.reaches]


def test_the_change_that_is_named_is_found_nine_times_of_ten() -> None:
    found = noise(measured(0.01, 200))
    assert found.deviation == pytest.approx(0.01 * 2**0.5, rel=0.1)
    last = found.reaches[-1]
    assert last.effect is not None
    as_made = Situation(Made(process=0.01, drift=0.0, outliers=0.0))
    tally = simulate(last.effect, as_made, 1000)
    assert tally.verdicts["slower"] / 1000 == pytest.approx(0.9, abs=0.06)


def test_pairs_fit_into_minutes_up_to_the_cap() -> None:
    # Six pairs a minute, of which one is not measured; pairs on two GPUs run at the same time.
    pairs = measured(0.01, 40)
    assert [reach.pairs for reach in noise(pairs).reaches] == [5, 17, 30]
    assert [reach.pairs for reach in noise(pairs, devices=2).reaches] == [10, 30, 30]
    assert noise(pairs).reaches[0].effect is None
    sentence = noise(pairs).sentence()
    assert "In 1 min compare measures at most 5 pairs and finds no change" in sentence
    assert "In 15 min compare measures at most 30 pairs and finds a change of" in sentence
    assert noise(measured(0.01, 40, in_turns=True)).pair_s == 10


def test_more_noise_fewer_pairs_and_more_metrics_find_less() -> None:
    pairs = measured(0.02, 60)
    _, some, most = effects(noise(pairs))
    assert some > most > PLAN.margin
    assert effects(noise(measured(0.06, 60)))[-1] > most
    assert effects(noise(pairs, at_once=20))[-1] > most
    assert effects(noise(measured(0.0001, 60)))[-1] < 1.1 * PLAN.margin


def test_of_too_few_pairs_nothing_is_said() -> None:
    found = noise(measured(0.01, LEAST_PAIRS - 1))
    assert found.reaches == ()
    assert "are too few to say what can be found; take more with --null" in found.sentence()


def test_in_time_only_the_looks_of_the_plan_that_are_come_to_find_anything() -> None:
    halves = np.random.default_rng(1).normal(0, 0.014, 40)

    def found(pairs: int, sessions: int = 1) -> float | None:
        pool = Pool(halves, sessions)
        reach = reach_of(pool, 10.0, PLAN, 10.0 * pairs, 1, 1)
        assert reach.pairs == pairs
        return reach.effect

    of = {pairs: found(pairs) or math.inf for pairs in (0, 4, 5, 18, 22, 24)}
    assert of[0] == of[4] == math.inf > of[5] > of[18] == of[22] > of[24] > PLAN.margin
    # Three or four pairs decide where the noise of several sessions is known.
    assert of[5] < (found(4, sessions=8) or 0) < math.inf
