"""Clues: what differs between two ends besides the time that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asv_bench.measure.software import Software, other_packages


class Source(StrEnum):
    """Where a clue was seen."""

    VARIABLES = "variables"
    PACKAGES = "packages"
    COUNTERS = "counters"
    KERNELS = "compiled kernels"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing that is not the same at both ends; records call it a difference."""

    source: Source
    name: str  # a kernel, an operator, a package
    what: str  # which figure of it, such as "calls a step"
    before: float | str | None  # None: this end does not have it
    after: float | str | None
    sentence: str  # without a full stop
    is_exact: bool = True  # the same in every process; False: a time, told from noise
    leaning: int = 0  # 1: the head does more, -1: it does less, 0: neither can be said
    # Microseconds that the head takes longer for it, a step or a trace: measured in traces, or a
    # rough guess to order by.
    cost_us: float | None = None
    part: float | None = None  # the measured cost as a fraction of the base's traced time
    also: tuple[str, ...] = ()  # what differs in the same way, such as operators that one calls
    on_gpu: bool | None = None  # the one kind of device where it happens; None: on either
    is_waiting: bool = False  # whether the kernel waits for other devices: its time is no cause

    @classmethod
    def of_figures(
        cls,
        source: Source,
        name: str,
        what: str,
        sides: Iterable[float],
        sentence: str,
        each_us: float,  # what one more of the figure costs
        **more: Any,
    ) -> Clue:
        """A figure that the head has more or less of; `more` are other fields, or overrule."""
        before, after = sides
        leaning = (after > before) - (after < before)
        known = {"leaning": leaning, "cost_us": (after - before) * each_us}
        return cls(source, name, what, before, after, sentence, **{**known, **more})

    @property
    def change(self) -> float:
        """How much more the head has of the figure; 0 where it is a text."""
        before, after = self.before or 0, self.after or 0
        if isinstance(before, str) or isinstance(after, str):
            return 0.0
        return round(after - before, 6)

    @property
    def is_cell(self) -> bool:
        """Whether it is of what an end runs with, and not of what it does."""
        return self.source in (Source.VARIABLES, Source.PACKAGES)

    @property
    def size_us(self) -> float:
        """What it costs, whichever end it costs that."""
        return abs(self.cost_us or 0.0)


def cell_clues(base: Software, head: Software) -> Iterator[Clue]:
    """Each variable, the interpreter and each package that differs."""
    for name in sorted({*base.variables, *head.variables}):
        before, after = base.variables.get(name), head.variables.get(name)
        if before != after:
            text = f"{name} is {after or 'unset'} in place of {before or 'unset'}"
            yield Clue(Source.VARIABLES, name, "variable", before, after, text)
    before, after = base.interpreter, head.interpreter
    if before and after and before != after:
        text = f"{after} runs in place of {before}"
        yield Clue(Source.VARIABLES, "interpreter", "program", before, after, text)
    for name, before, after in other_packages(base, head):
        text = f"{name} {before or 'none'} → {after or 'none'}"
        yield Clue(Source.PACKAGES, name, "version", before, after, text)


def more_or_less(before: float, after: float, one: str, many: str) -> str:
    """How much more the head does, "2 more calls (4 → 6)"; before and after are not equal."""
    change, word = abs(after - before), "more" if after > before else "fewer"
    noun = one if change == 1 else many
    return f"{number(change)} {word} {noun} ({number(before)} → {number(after)})"


def number(value: float) -> str:
    """A count as people write it: whole where it is whole or large, else to three digits."""
    if abs(value - round(value)) < 1e-9 or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.3g}"
