"""How much of one shift another one is: the ratio of two shifts seen in the same pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asv_bench.stats.paired import Floats, hodges_lehmann, shift_interval
from asv_bench.stats.sequential import root

_FARTHEST = 64.0


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio, 1 for all of it, and its interval; infinite where a bound was not found."""

    value: float
    interval: tuple[float, float]
    confidence: float


def share_of(whole: Floats, part: Floats, confidence: float) -> Share:
    """The ratio of two shifts, with its interval by inverting Wilcoxon's test.

    A ratio is in the interval if `ratio * whole - part` may well be centred at 0 (Fieller 1954,
    with ranks in place of means): the two need not be independent, nor the whole known exactly.

    Both are differences of logarithms, [pairs]; the whole is shown to be positive.
    """

    def shift(statistic: Callable[[Floats], float]) -> Callable[[float], float]:
        return lambda ratio: statistic(ratio * whole - part)

    value = float(hodges_lehmann(part) / hodges_lehmann(whole))
    # Shifts rise with the ratio, so the smallest ratio is where even the upper bound is 0.
    low = _root(shift(lambda values: float(shift_interval(values, confidence)[1])), value, -1.0)
    high = _root(shift(lambda values: float(shift_interval(values, confidence)[0])), value, 1.0)
    reached = shift_interval(np.zeros(whole.shape[-1]), confidence)[2]
    return Share(value, (min(low, value), max(high, value)), reached)


def _root(function: Callable[[float], float], start: float, direction: float) -> float:
    """Where a function that rises is 0, looked for from a start; infinite if that is too far."""
    if direction * function(start) >= 0:
        return start
    step = 1 / 64
    while step <= _FARTHEST:
        end = start + direction * step
        if direction * function(end) >= 0:
            return root(function, min(start, end), max(start, end), 1e-6)
        step *= 2
    return math.copysign(math.inf, direction)
