"""What differs between two ends besides the time that they take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Source(StrEnum):
    """Where a difference was seen."""

    VARIABLES = "variables"
    PACKAGES = "packages"
    COUNTERS = "counters"
    KERNELS = "compiled kernels"
    TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same at both ends.

    Attributes
    ----------
    source
        Where it was seen.
    name
        What differs, such as a kernel, an operator or a package.
    what
        Which figure of it, such as "calls a step".
    before, after
        The figure, or a text; None where this end does not have it.
    sentence
        The difference in words, without a full stop.
    is_exact
        Whether it is the same in every process; False: a time, told from noise by repetition.
    leaning
        1 where the head does more, -1 where it does less, 0 where neither can be said.
    cost_us
        Microseconds that the head takes longer for it, a step or a trace: measured in traces, or
        a rough guess to order by; None where there is no guess.
    part
        The measured cost as a fraction of the base's traced time; None where it is not traced.
    also
        Other names that differ in the same way, such as operators that one operator calls.
    on_gpu
        True or False for what happens on one kind of device only; None: on either.
    is_waiting
        Whether the kernel waits for other devices, so that its time is no cause.
    """

    source: Source
    name: str
    what: str
    before: float | str | None
    after: float | str | None
    sentence: str
    is_exact: bool = True
    leaning: int = 0
    cost_us: float | None = None
    part: float | None = None
    also: tuple[str, ...] = ()
    on_gpu: bool | None = None
    is_waiting: bool = False

    @property
    def change(self) -> float:
        """How much more the head has of the figure; 0 where it is a text."""
        before, after = self.before or 0, self.after or 0
        if isinstance(before, str) or isinstance(after, str):
            return 0.0
        return round(after - before, 6)

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON-ready values."""
        return {**asdict(self), "source": str(self.source)}


def more_or_less(before: float, after: float, one: str, many: str) -> str:
    """How much more the head does, "2 more calls (4 → 6)"; before and after are not equal."""
    change = abs(after - before)
    word = "more" if after > before else "fewer"
    noun = one if change == 1 else many
    return f"{number(change)} {word} {noun} ({number(before)} → {number(after)})"


def number(value: float) -> str:
    """A count as people write it: whole where it is whole or large, else to three digits."""
    if abs(value - round(value)) < 1e-9 or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.3g}"
