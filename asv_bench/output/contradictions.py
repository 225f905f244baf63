"""Warnings about figures that contradict each other, with advice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

PLAUSIBLE_SPREAD = 1.2
"""The largest of several runs of one thing over the smallest, beyond which they disagree."""
PLAUSIBLE_SKEW = 1.3
"""Mean over median, or the other way round, of times that should be alike."""
PLAUSIBLE_RATIO = 1.5
"""Two figures of one thing, the larger over the smaller."""
SHOWN = 3
ADVICE = "Make the machine idle and measure again before you believe them."


def spread_sentences(
    values: Mapping[str, Sequence[float]], of_what: str = "runs", unit: str = ""
) -> list[str]:
    """At most one sentence: which runs of the same thing disagree, and by how much.

    `values` has one figure for each run, by name; `of_what` they are: runs, processes; `unit` is of
    all figures.
    """
    apart = {
        name: spread
        for name, runs in values.items()
        if (spread := _apart(runs)) is not None and spread > PLAUSIBLE_SPREAD
    }
    if not apart:
        return []
    worst = sorted(apart, key=lambda name: -apart[name])
    listed = "; ".join(
        f"{name} is {_shown(min(_finite(values[name])))} to {_shown(max(_finite(values[name])))}"
        f"{unit and ' '}{unit}"
        for name in worst[:SHOWN]
    )
    rest = len(worst) - SHOWN
    more = f"; and {rest} more figure{'s' if rest > 1 else ''}" if rest > 0 else ""
    return [
        f"Warning: {of_what} that measured the same disagree by more than "
        f"{100 * (PLAUSIBLE_SPREAD - 1):.0f} %: {listed}{more}. {ADVICE}"
    ]


def processes_apart(figures: Iterable[tuple[str, float]], unit: str = "") -> list[str]:
    """The sentence of `spread_sentences` about processes, given the name and figure of each."""
    values: dict[str, list[float]] = {}
    for name, figure in figures:
        values.setdefault(name, []).append(figure)
    return spread_sentences(values, "processes", unit)


def skew_sentences(figures: Mapping[str, tuple[float, float]]) -> list[str]:
    """A sentence for each figure, by name, whose median and mean are far apart."""
    said: list[str] = []
    for name, (median, mean) in figures.items():
        apart = _apart((median, mean))
        if apart is not None and apart > PLAUSIBLE_SKEW:
            said.append(
                f"Warning: the p50 of {name} is {_shown(median)} and its mean {_shown(mean)}: a "
                f"few took far longer than the others. {ADVICE}"
            )
    return said


def ratio_sentence(one: tuple[str, float], other: tuple[str, float], unit: str) -> list[str]:
    """A sentence where two figures of the same thing, each with its name, are far apart."""
    apart = _apart((one[1], other[1]))
    if apart is None or apart <= PLAUSIBLE_RATIO:
        return []
    return [
        f"Warning: {one[0]} is {_shown(one[1])} {unit} and {other[0]} {_shown(other[1])} {unit}, "
        f"which should be about the same. {ADVICE}"
    ]


def _apart(values: Sequence[float]) -> float | None:
    """The largest over the smallest; None where fewer than two are positive numbers."""
    positive = [value for value in _finite(values) if value > 0]
    return max(positive) / min(positive) if len(positive) > 1 else None


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
