"""Names and figures in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from asv_bench.errors import Refused

_SPREAD = 1.2  # the largest figure of one thing over the smallest, beyond which they disagree


def counted(count: int, what: str) -> str:
    """A number of things in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def first_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def gathered(remarks: Iterable[str]) -> list[str]:
    """Remarks, `name: clause`, with the names of a clause together; others as they are."""
    found: dict[str, list[str]] = {}
    for remark in remarks:
        *names, clause = remark.split(": ", 1)
        found.setdefault(clause, []).extend(names)
    return [f"{first_of(names, 3)}: {one}" if names else one for one, names in found.items()]


def numbers_of(option: str, text: str, what: str, fits: Callable[[float], bool]) -> list[float]:
    """Numbers with commas between. Raises Refused if that is not what an option has."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(map(fits, numbers)):
        raise Refused(f"{option} {text!r} must be {what}.")
    return numbers


def processes_apart(figures: Iterable[tuple[str, float]], unit: str = "") -> list[str]:
    """At most one sentence: which processes that measured the same disagree, and by how much.

    `figures` has the name and the figure of each process; `unit` is of all figures.
    """
    found: dict[str, list[float]] = {}
    for name, figure in figures:
        if 0 < figure < math.inf:
            found.setdefault(name, []).append(figure)
    apart = {name: max(values) / min(values) for name, values in found.items()}
    listed = [
        f"{name} is {_shown(min(found[name]))} to {_shown(max(found[name]))} {unit}".rstrip()
        for name in sorted(apart, key=apart.__getitem__, reverse=True)
        if apart[name] > _SPREAD
    ]
    if not listed:
        return []
    return [
        "Warning: processes that measured the same disagree by more than 20 %: "
        f"{first_of(listed, 3)}. Make the machine idle and measure again before you believe them."
    ]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
