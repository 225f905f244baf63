"""Names and figures in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

ADVICE = "Make the machine idle and measure again before you believe them."
_SPREAD = 1.2
"""The largest of several figures of one thing over the smallest, beyond which they disagree."""
_SHOWN = 3


def first_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are; "and 1 more" is that one's name."""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def processes_apart(
    figures: Iterable[tuple[str, float]], unit: str = "", *, of_what: str = "processes"
) -> list[str]:
    """At most one sentence: which processes that measured the same disagree, and by how much.

    `figures` has the name and the figure of each process; `unit` is of all figures.
    """
    values: dict[str, list[float]] = {}
    for name, figure in figures:
        if math.isfinite(figure):
            values.setdefault(name, []).append(figure)
    spreads = {name: max(found) / min(found) for name, found in values.items() if min(found) > 0}
    worst = sorted(spreads, key=spreads.__getitem__, reverse=True)
    listed = [
        f"{name} is {_shown(min(values[name]))} to {_shown(max(values[name]))} {unit}".rstrip()
        for name in worst
        if spreads[name] > _SPREAD
    ]
    if not listed:
        return []
    rest = f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return [
        f"Warning: {of_what} that measured the same disagree by more than "
        f"{100 * (_SPREAD - 1):.0f} %: {'; '.join(listed[:_SHOWN])}{rest}. {ADVICE}"
    ]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
