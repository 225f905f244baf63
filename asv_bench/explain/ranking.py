"""What explains a change best: exact differences that cost enough, then times beyond noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from asv_bench.explain.clue import Clue, Source
from asv_bench.explain.effect import Effect
from asv_bench.explain.trace_pair import HOST, TracePair

MOST = 3
"""Causes that are named."""
_MINOR = 0.05
"""Of the change: an exact difference that costs less, as far as is known, comes last."""
_SHOWN_PACKAGES = 6
_PYTHON = "lines a step"


class _Rank(IntEnum):
    """In this order causes are named; within one the most expensive comes first."""

    CIRCUMSTANCE = 0
    EXACT = 1
    PACKAGE = 2
    TIMED = 3
    MINOR = 4


@dataclass(frozen=True, slots=True)
class TimeChange:
    """What is to be explained."""

    effect: Effect | None  # that a comparison measured; None: none is known
    traces: TracePair | None  # of both ends; None: none were taken
    is_here_gpu: bool  # whether this machine measures on a GPU

    @property
    def sign(self) -> int:
        """1 where the head is slower, -1 where it is faster, 0 where nothing says so."""
        if self.effect is not None:
            return self.effect.sign
        if self.traces is not None and self.traces.shows_effect:
            return 1 if self.traces.effect > 0 else -1
        return 0

    @property
    def is_none(self) -> bool:
        """Whether a comparison has shown that there is nothing to explain."""
        return self.effect is not None and self.effect.verdict in ("equivalent", "same")

    @property
    def size(self) -> float | None:
        """How much longer the head takes, as a fraction, where that is measured."""
        if self.effect is not None:
            return self.effect.cost
        return self.traces.effect if self.traces is not None and self.sign else None

    def is_minor(self, clue: Clue) -> bool:
        """Whether a clue costs next to nothing of the change, as far as both are known."""
        base_us = self.effect.base_us if self.effect is not None else None
        if self.traces is not None:
            base_us = self.traces.base_us
        if base_us is None or not self.size:
            return False
        return _cost(clue) < _MINOR * abs(base_us * self.size)

    def admits(self, clue: Clue) -> bool:
        """Whether a clue leans as the change does, or no way, and is of what was measured.

        A trace is of what is measured; counters are of any device. Kernels that wait for others
        explain nothing.
        """
        is_elsewhere = self.effect is not None and clue.on_gpu not in (None, self.effect.is_on_gpu)
        if clue.is_waiting or (is_elsewhere and clue.source is not Source.TRACE):
            return False
        return not self.sign or clue.leaning in (0, self.sign)

    def rank(self, clue: Clue) -> tuple[int, bool, bool, float]:
        """The lower, the better a clue explains the change."""
        places = (None, self.is_here_gpu)
        is_elsewhere = clue.source is not Source.TRACE and clue.on_gpu not in places
        is_other_way = clue.leaning < 0 and not self.sign
        if clue.source is Source.VARIABLES:
            rank = _Rank.CIRCUMSTANCE
        elif clue.source is Source.PACKAGES:
            rank = _Rank.PACKAGE
        elif not clue.is_exact:
            rank = _Rank.TIMED
        else:
            rank = _Rank.MINOR if self.is_minor(clue) else _Rank.EXACT
        return rank, is_elsewhere, is_other_way, -_cost(clue)


def causes(clues: Sequence[Clue], change: TimeChange) -> list[Clue]:
    """The clues that explain a change best, the best first; none where there is no change."""
    if change.is_none:
        return []
    return sorted(filter(change.admits, _told_once(clues)), key=change.rank)[:MOST]


def explained(clues: Iterable[Clue], change: TimeChange) -> float | None:
    """How much of a change the clues of the traces add up to; None where that is unknown.

    Waiting is left out.
    """
    if change.traces is None or not change.size or change.is_none:
        return None
    parts = [one.part for one in clues if one.part is not None and not one.is_waiting]
    return sum(parts) / change.size


def _told_once(clues: Sequence[Clue]) -> list[Clue]:
    """What several sources saw as one clue each, measured costs in place of guesses."""
    by_source = {source: [one for one in clues if one.source is source] for source in Source}
    traced, counted = by_source[Source.TRACE], by_source[Source.COUNTERS]
    exact = [one for one in traced if one.is_exact]
    named = {name for one in exact for name in (one.name, *one.also)}
    counted = [one for one in counted if one.name not in named]
    operators = {one.leaning for one in counted if one.what == "operators a step"}
    operators |= {one.leaning for one in exact}
    python = sorted((one for one in counted if one.what == _PYTHON), key=_cost)
    told = [
        one
        for one in counted
        # What operators make new is told by the operators.
        if one.what != _PYTHON and not (one.name.startswith("new ") and one.leaning in operators)
    ]
    # Of the engine's Python the most on each kind of device, with the host's time if traced.
    for one in {one.on_gpu: one for one in python}.values():
        idle = [other for other in traced if other.name == HOST and other.leaning == one.leaning]
        if idle and not one.on_gpu:
            traced = [other for other in traced if other is not idle[0]]
            text = f"{one.sentence}; {idle[0].sentence}"
            one = replace(one, sentence=text, cost_us=idle[0].cost_us, part=idle[0].part)
        told.append(one)
    others = (*by_source[Source.VARIABLES], *by_source[Source.KERNELS])
    return [*others, *told, *_as_one(by_source[Source.PACKAGES]), *traced]


def _cost(clue: Clue) -> float:
    return abs(clue.cost_us or 0.0)


def _as_one(packages: Sequence[Clue]) -> list[Clue]:
    if len(packages) < 2:
        return [replace(one, sentence=f"another version of {one.sentence}") for one in packages]
    shown = ", ".join(one.sentence for one in packages[:_SHOWN_PACKAGES])
    more = len(packages) - _SHOWN_PACKAGES
    rest = f" and {more} more" if more > 0 else ""
    text = f"other versions of {len(packages)} packages: {shown}{rest}"
    return [replace(packages[0], sentence=text, also=tuple(one.name for one in packages[1:]))]
