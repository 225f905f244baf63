"""Noise that earlier comparisons showed: what is kept, for what, and what four pairs make of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from simulated_pairs import BASE, HEAD, ScriptedPairs, pair_of, seconds

from asv_bench.compare.comparison import CommitComparison
from asv_bench.compare.judging import within_commit
from asv_bench.compare.noise_pools import NoisePools
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.rounds import two_cells
from asv_bench.output.record import Record

NOISE = np.random.default_rng(5).normal(0, 0.001, 40).tolist()


def test_a_seam_of_two_pairs_is_a_difference_within_one_commit() -> None:
    orders = (False, True, True, False)
    pairs = [
        pair_of(2.0**number, 3.0**number, head_first=order) for number, order in enumerate(orders)
    ]
    # base head, head base, head base, base head: the head after itself, then the base.
    assert within_commit(pairs) == pytest.approx([math.log(3), math.log(2)])
    assert within_commit([pairs[0], pair_of(1, 1, head_first=True, device="gpu1")]) == []


def comparison() -> CommitComparison:
    return CommitComparison(two_cells(BASE, HEAD), seconds("b"), pools={"b": NOISE})


@pytest.mark.parametrize(
    ("effect", "verdict", "pairs", "confidence", "p"),
    [
        (0.02, Verdict.SLOWER, 3, 0.75, 1e-4),
        (-0.02, Verdict.FASTER, 3, 0.75, 1e-4),
        (0.0, Verdict.EQUIVALENT, 4, 0.875, 1e-6),
    ],
)
def test_few_pairs_are_enough_where_the_noise_is_known(
    effect: float, verdict: Verdict, pairs: int, confidence: float, p: float
) -> None:
    source = ScriptedPairs(lambda name, number: (1 + effect) * math.exp(0.2 * NOISE[number]))
    (answer,) = comparison().run(source)
    assert answer.verdict is verdict
    assert answer.pairs_used == pairs
    assert answer.test == "pooled ranks"
    assert answer.confidence == confidence
    assert answer.p is not None
    assert answer.equivalence_p is not None
    assert min(answer.p, answer.equivalence_p) < p


def test_a_run_that_is_noisier_than_the_pool_needs_more_pairs() -> None:
    def ratio(name: str, number: int) -> float:
        return 1.02 * math.exp(20 * NOISE[number])

    (answer,) = comparison().run(ScriptedPairs(ratio))
    assert answer.pairs_used > 5


def test_the_latest_differences_of_a_benchmark_are_kept(tmp_path: Path) -> None:
    record = Record("compare", {})
    pools = NoisePools(record, tmp_path)
    assert pools.of(["a", "b"]) == {}
    orders = [number % 4 in (1, 2) for number in range(60)]
    pairs = [pair_of(1.0, 1.0 + number / 100, head_first=one) for number, one in enumerate(orders)]
    pools.add({"a": pairs, "b": pairs[:8]})
    # 30 seams are not enough yet.
    assert NoisePools(record, tmp_path).of(["a", "b"]) == {}
    NoisePools(record, tmp_path).add({"a": pairs})
    again = NoisePools(record, tmp_path).of(["a", "b"])
    assert {name: len(pool) for name, pool in again.items()} == {"a": 40}
    assert again["a"][-1] == within_commit(pairs)[-1]


@pytest.mark.parametrize("content", ["", "[]", '{"a": [NaN]}', '{"a": ["x"]}', '{"a": 3}'])
def test_a_file_that_is_none_is_named_and_learnt_anew(content: str, tmp_path: Path) -> None:
    record = Record("compare", {})
    pools = NoisePools(record, tmp_path)
    pools.add({"a": []})
    pools.path.write_text(content)
    again = NoisePools(record, tmp_path)
    assert again.of(["a"]) == {}
    assert str(pools.path) in again.complaints[0]
    again.add({"a": []})
    assert json.loads(pools.path.read_text()) == {"a": []}
