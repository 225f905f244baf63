"""How long measuring commits will take, and whether the user agrees."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import typer
from rich.console import Console

from asv_bench.errors import Refused

LONG_SECONDS = 3600.0
"""Work that is expected to take longer is begun only where the user has agreed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long something is expected to take, in seconds, and how that is known."""

    seconds: float
    why: str

    @property
    def sentence(self) -> str:
        """How long it takes and why."""
        return f"about {long_time(self.seconds)}: {self.why}"


def agree_to(expected: Estimate, console: Console, *, yes: bool) -> None:
    """Say how long it takes; if that is long, ask at a terminal, and elsewhere want --yes.

    Refused if nobody agreed.
    """
    console.print(f"expected to take {expected.sentence}")
    if yes or expected.seconds <= LONG_SECONDS:
        return
    if console.is_terminal and sys.stdin.isatty():
        if typer.confirm("Begin?"):
            return
        raise Refused("nothing was measured.")
    raise Refused(
        f"this would take {expected.sentence}. Add --yes to begin, or measure less: a shorter "
        f"range, fewer --rounds, or some benchmarks with --benchmark."
    )


def counted(count: int, what: str) -> str:
    """A number of things in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def long_time(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours < 10 else f"{round(seconds / 3600)} hours"
