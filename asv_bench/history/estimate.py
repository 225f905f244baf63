"""How long measuring commits will take, from earlier results, and whether the user agrees."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from asv_bench.errors import Refused
from asv_bench.history.asv_selection import Selection, names_with_parameters
from asv_bench.output.stored_json import UnreadableFile, positive, read_stored

LONG_SECONDS = 3600.0
"""Work that is expected to take longer is begun only where the user has agreed."""
ASSUMED_SECONDS = 50.0
"""A round of one commit, where nothing is stored of this machine: what two cores take."""
STORED = "as stored of this machine"
ASSUMED = "assumed, as nothing is stored"
_FILES = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long something is expected to take, in seconds, and how that is known."""

    seconds: float
    why: str

    @property
    def sentence(self) -> str:
        """How long it takes and why."""
        return f"about {long_time(self.seconds)}: {self.why}"


def estimate(results: Path, machine: str, commits: int, selection: Selection) -> Estimate:
    """How long it takes to measure so many commits, by the newest results of this machine.

    `results` is asv's directory of results; `machine` the folder in it.
    """
    newest = sorted((results / machine).glob("*.json"), key=lambda path: path.stat().st_mtime)
    rounds: list[float] = []
    for path in newest[-_FILES:]:
        with contextlib.suppress(UnreadableFile):
            rounds.append(read_stored(path, "a result file of asv", partial(_round_of, selection)))
    round_s = statistics.median(rounds) if rounds else ASSUMED_SECONDS
    source = STORED if rounds else ASSUMED
    why = (
        f"{counted(commits, 'commit')} x {counted(selection.rounds, 'round')}, {round_s:.2g} s each"
    )
    return Estimate(commits * selection.rounds * round_s, f"{why}, {source}")


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


def _round_of(selection: Selection, content: Mapping[str, Any]) -> float:
    """Seconds that the selected benchmarks took in a stored round; ValueError if 0."""
    seconds = 0.0
    for benchmark, values in content["results"].items():
        row = dict(zip(content["result_columns"], values, strict=False))
        names = names_with_parameters(benchmark, row.get("params") or [])
        results = row.get("result") or [None] * len(names)
        # asv stores NaN for combinations that it skipped.
        measured = [
            selection.includes(name)
            for name, value in zip(names, results, strict=True)
            if value is not None and not math.isnan(value)
        ]
        if measured:
            seconds += (row.get("duration") or 0.0) * sum(measured) / len(measured)
    return positive(seconds)
