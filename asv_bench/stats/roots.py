"""Where a function is 0."""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Where a function that rises is 0 between two points, found by halving what lies between."""
    while high - low > precision:
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
