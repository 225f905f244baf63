"""What is said of an answer that is no verdict yet, and of CPU time beside wall time."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs, pair_of, seconds

from asv_bench.compare.comparison import CommitComparison, with_pairs
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import advice, beside_cpu, estimate_text, pairs_to_tell
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Pair

PLAN = ComparisonPlan()


def noisy(effect: float, deviation: float, count: int, seed: int = 0) -> list[Pair]:
    draws = np.random.default_rng(seed).normal(0, deviation / np.sqrt(2), (count, 2))
    return [
        pair_of(float(np.exp(base)), float((1 + effect) * np.exp(head)), benchmark="wall_s")
        for base, head in draws
    ]


def answered(pairs: list[Pair], verdict: Verdict = Verdict.INCONCLUSIVE) -> Comparison:
    return with_pairs(Comparison("wall_s", BASE, HEAD, verdict, unit="seconds"), pairs, PLAN)


def test_an_estimate_is_worth_saying_from_three_pairs_on() -> None:
    assert estimate_text(answered(noisy(0.1, 0.01, 2))) == ""
    assert estimate_text(answered([pair_of(1.0, 1.1)] * 3)) == "+10.0 % ± 0.0 % so far"


@pytest.mark.parametrize(("effect", "deviation"), [(0.03, 0.02), (0.10, 0.08), (0.0, 0.006)])
def test_as_many_pairs_as_are_advised_tell_nine_times_of_ten(
    effect: float, deviation: float
) -> None:
    needed = pairs_to_tell(effect, deviation, PLAN)
    plan = ComparisonPlan.with_cap(needed)
    design, told = two_cells(BASE, HEAD), 0
    for seed in range(40):
        pairs = iter(noisy(effect, deviation, 3 * needed + 40, seed))
        comparison = CommitComparison(design, seconds("wall_s"), plan)
        source = ScriptedPairs(lambda *_, pairs=pairs: next(pairs).effect + 1, ("wall_s",))
        told += comparison.run(source)[0].verdict is not Verdict.INCONCLUSIVE
    assert told >= 32


def test_advice_names_pairs_minutes_and_a_quieter_metric() -> None:
    pairs = noisy(0.15, 0.3, 12)
    others = {"cpu_s": {BASE: [1.0, 1.01, 0.99], HEAD: [1.15, 1.16, 1.14]}}
    said = advice(answered(pairs), pairs, PLAN, others, 1, "--pairs")
    assert said.startswith("wall_s: to tell +")
    assert "pairs (--pairs " in said
    assert "or --metric cpu_s, which varies by 0.9 % here and not by " in said
    assert "--metric" not in advice(answered(pairs), pairs, PLAN, {}, 1, "--pairs")
    assert advice(answered(pairs, Verdict.SLOWER), pairs, PLAN, others, 1, "--pairs") == ""
    # An effect as large as the margin is told by no number of pairs.
    pairs = [pair_of(1.0, 1.00999 + 0.02 * (-1) ** n, benchmark="wall_s") for n in range(12)]
    assert "decide what matters" in advice(answered(pairs), pairs, PLAN, {}, 1, "--pairs")


@pytest.mark.parametrize(
    ("verdict", "wall", "cpu", "said"),
    [
        (Verdict.SLOWER, 0.15, 0.0, "it waits longer"),
        (Verdict.FASTER, -0.15, 0.0, "it waits less"),
        (Verdict.EQUIVALENT, 0.0, 0.15, "it works more while nobody waits"),
        (Verdict.INCONCLUSIVE, 0.02, 0.06, "--metric cpu_s judges what it works"),
        (Verdict.SLOWER, 0.15, 0.14, ""),
        (Verdict.INCONCLUSIVE, 0.02, 0.0, ""),
    ],
)
def test_cpu_time_stands_beside_wall_time_where_they_disagree(
    verdict: Verdict, wall: float, cpu: float, said: str
) -> None:
    answer = answered(noisy(wall, 0.001, 12), verdict)
    lives = [1.0 + 0.001 * (n % 3) for n in range(12)]
    others = {"cpu_s": {BASE: lives, HEAD: [(1 + cpu) * one for one in lives]}}
    found = beside_cpu(answer, others, PLAN)
    assert found.endswith(f"{said}." if said else "")
    assert bool(found) is bool(said)
    if said:
        assert f"cpu_s {100 * cpu:+.1f} % (" in found
