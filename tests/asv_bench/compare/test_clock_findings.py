"""Clocks that differ between commits are said, and those that only wander are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from simulated_pairs import pair_of

from asv_bench.compare.tables import clock_findings
from asv_bench.measure.samples import GpuConditions, Pair


def conditions(clock: float, *events: str) -> GpuConditions:
    return GpuConditions(clock, clock, clock, events, 60, 9)


def pairs_at(both: Sequence[tuple[GpuConditions | None, GpuConditions | None]]) -> list[Pair]:
    pairs = [(pair_of(1.0, 1.0), *gpus) for gpus in both]
    return [
        replace(
            pair,
            base=replace(pair.base, gpu=base, started_at=2.0 * number),
            head=replace(pair.head, gpu=head, started_at=2.0 * number + 1),
        )
        for number, (pair, base, head) in enumerate(pairs)
    ]


@pytest.mark.parametrize("count", [4, 10, 30])
def test_a_head_that_lowers_its_clock_is_named_with_both_clocks(count: int) -> None:
    pairs = pairs_at([(conditions(1980), conditions(1950))] * count)
    (sentence,) = clock_findings(pairs)
    assert "1980 MHz for the base, 1950 MHz for the head (-1.5 % in a typical one" in sentence
    assert f"of {count} pairs" in sentence
    # Benchmarks share processes, which count once.
    assert clock_findings([*pairs, *pairs]) == [sentence]


def test_clocks_that_wander_alike_in_both_are_no_finding() -> None:
    random = np.random.default_rng(4)
    clocks = 1980 - 15 * random.integers(0, 5, (200, 12, 2))
    found = [
        clock_findings(pairs_at([(conditions(base), conditions(head)) for base, head in run]))
        for run in clocks.astype(float)
    ]
    assert sum(map(bool, found)) <= 6


@pytest.mark.parametrize(
    "both",
    [
        [(conditions(1980), conditions(1950))] * 3,
        [(conditions(1980), conditions(1978))] * 30,
        [(None, None)] * 30,
        [(conditions(1980), None)] * 30,
        [],
    ],
)
def test_too_few_pairs_or_too_small_a_difference_are_no_finding(both) -> None:
    assert clock_findings(pairs_at(both)) == []


def test_a_head_that_is_throttled_more_often_is_named() -> None:
    quiet, hot = conditions(1980), conditions(1980, "sw_thermal_slowdown")
    (sentence,) = clock_findings(pairs_at([(quiet, hot)] * 9 + [(quiet, quiet)] * 3))
    assert "while 9 of 12 processes of the head ran, and 0 of the base" in sentence
    assert clock_findings(pairs_at([(quiet, hot), (hot, quiet)] * 6)) == []
    assert clock_findings(pairs_at([(quiet, hot)] * 2 + [(quiet, quiet)] * 10)) == []
