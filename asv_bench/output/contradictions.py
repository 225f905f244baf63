"""Warnings about figures that contradict each other, with advice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

_SPREAD = 1.2
"""The largest of several runs of one thing over the smallest, beyond which they disagree."""
_SKEW = 1.3
"""Mean over median, or the other way round, of times that should be alike."""
_RATIO = 1.5
"""Two figures of one thing, the larger over the smaller."""
_SHOWN = 3
ADVICE = "Make the machine idle and measure again before you believe them."


def spread_sentences(
    values: Mapping[str, Sequence[float]], of_what: str = "runs", unit: str = ""
) -> list[str]:
    """At most one sentence: which runs, or processes, of the same thing disagree, by how much.

    `values` has one figure for each run, by name; `unit` is of all figures.
    """
    worst = sorted(
        (name for name in values if _apart(values[name]) > _SPREAD),
        key=lambda name: -_apart(values[name]),
    )
    if not worst:
        return []
    listed = "; ".join(f"{name} is {_range(values[name], unit)}" for name in worst[:_SHOWN])
    rest = len(worst) - _SHOWN
    more = f"; and {rest} more figure{'s' if rest > 1 else ''}" if rest > 0 else ""
    return [
        f"Warning: {of_what} that measured the same disagree by more than "
        f"{100 * (_SPREAD - 1):.0f} %: {listed}{more}. {ADVICE}"
    ]


def processes_apart(figures: Iterable[tuple[str, float]], unit: str = "") -> list[str]:
    """The sentence of `spread_sentences` about processes, given the name and figure of each."""
    values: dict[str, list[float]] = {}
    for name, figure in figures:
        values.setdefault(name, []).append(figure)
    return spread_sentences(values, "processes", unit)


def skew_sentences(figures: Mapping[str, tuple[float, float]]) -> list[str]:
    """A sentence for each figure, by name, whose median and mean are far apart."""
    return [
        f"Warning: the p50 of {name} is {_shown(median)} and its mean {_shown(mean)}: a few took "
        f"far longer than the others. {ADVICE}"
        for name, (median, mean) in figures.items()
        if _apart((median, mean)) > _SKEW
    ]


def ratio_sentence(one: tuple[str, float], other: tuple[str, float], unit: str) -> list[str]:
    """A sentence where two figures of the same thing, each with its name, are far apart."""
    if _apart((one[1], other[1])) <= _RATIO:
        return []
    return [
        f"Warning: {one[0]} is {_shown(one[1])} {unit} and {other[0]} {_shown(other[1])} {unit}, "
        f"which should be about the same. {ADVICE}"
    ]


def _apart(values: Sequence[float]) -> float:
    """The largest over the smallest of the positive numbers; 1 where there are not two."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    return max(positive) / min(positive) if positive else 1.0


def _range(values: Sequence[float], unit: str) -> str:
    numbers = [value for value in values if math.isfinite(value)]
    return f"{_shown(min(numbers))} to {_shown(max(numbers))} {unit}".rstrip()


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
