"""Clues: what differs between two ends besides the time that they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from asv_bench.measure.software import Software, asked_otherwise, other_packages
from asv_bench.words import first_of

_PACKAGES = 6


class Source(StrEnum):
    """Where a clue was seen."""

    VARIABLES = "variables"
    PACKAGES = "packages"
    COUNTERS = "counters"
    KERNELS = "compiled kernels"
    TRACE = "trace"
    FUNCTIONS = "functions"


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing that is not the same at both ends; records call it a difference."""

    source: Source
    name: str  # a kernel, an operator, a package
    what: str  # which figure of it, such as "calls a step"
    before: float | str | None  # None: this end does not have it
    after: float | str | None
    sentence: str  # without a full stop
    # Microseconds that the head takes longer for it, a step or a trace: measured in traces, or a
    # rough guess to order by.
    cost_us: float = 0.0
    part: float | None = None  # the measured cost as a fraction of the base's traced time
    is_exact: bool = True  # the same in every process; False: a time, told from noise
    is_waiting: bool = False  # whether the kernel waits for other devices: its time is no cause

    @property
    def leaning(self) -> int:
        """1: the head does more, -1: it does less, 0: neither can be said."""
        if isinstance(self.before, float | int) and isinstance(self.after, float | int):
            return (self.after > self.before) - (self.after < self.before)
        return 0


def cell_clues(base: Software, head: Software) -> Iterator[Clue]:
    """Each variable and the interpreter that differs, and the packages that do together."""
    for name in sorted({*base.variables, *head.variables}):
        before, after = base.variables.get(name), head.variables.get(name)
        if before != after:
            text = f"{name} is {after or 'unset'} in place of {before or 'unset'}"
            yield Clue(Source.VARIABLES, name, "variable", before, after, text)
    before, after = base.interpreter, head.interpreter
    if before and after and before != after:
        text = f"{after} runs in place of {before}"
        yield Clue(Source.VARIABLES, "interpreter", "program", before, after, text)
    if packages := list(other_packages(base, head)):
        names, old, new = (
            ", ".join(one or "none" for one in each) for each in zip(*packages, strict=True)
        )
        moved = [f"{name} {one or 'none'} → {other or 'none'}" for name, one, other in packages]
        text = f"Packages have other versions: {first_of(moved, _PACKAGES)}"
        yield Clue(Source.PACKAGES, names, "version", old, new, text)
    if asked := asked_otherwise(base, head):
        text = f"Another client asks: {first_of(asked, _PACKAGES)}"
        old, new = (one.client.hash if one.client else "" for one in (base, head))
        yield Clue(Source.PACKAGES, "client", "hash", old, new, text)


def more_or_less(before: float, after: float, one: str, many: str) -> str:
    """How much more the head does, "2 more calls (4 → 6)"; before and after are not equal."""
    change, word = abs(after - before), "more" if after > before else "fewer"
    noun = one if change == 1 else many
    return f"{number(change)} {word} {noun} ({number(before)} → {number(after)})"


def number(value: float | str) -> str:
    """A count as people write it: whole where it is whole or large, else to three digits."""
    if isinstance(value, str):
        return value
    if abs(value - round(value)) < 1e-9 or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.3g}"
