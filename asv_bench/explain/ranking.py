"""What explains a change best: exact differences that cost enough, then times beyond noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from asv_bench.explain.difference import Difference, Source
from asv_bench.explain.effect import Effect
from asv_bench.explain.trace_pair import TracePair

MOST = 3
"""Causes that are named."""
_MINOR = 0.05
"""Of the change: an exact difference that costs less, as far as is known, comes last."""
_PYTHON = ("lines a step", "calls a step")
_SHOWN_PACKAGES = 6


class _Rank(IntEnum):
    """In this order causes are named; within one the most expensive comes first."""

    CIRCUMSTANCE = 0
    EXACT = 1
    PACKAGE = 2
    TIMED = 3
    MINOR = 4


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be explained.

    Attributes
    ----------
    effect
        The change that a comparison measured; None: none is known.
    traces
        Of both ends; None: none were taken.
    is_here_gpu
        Whether this machine measures on a GPU.
    """

    effect: Effect | None
    traces: TracePair | None
    is_here_gpu: bool

    @property
    def sign(self) -> int:
        """1 where the head is slower, -1 where it is faster, 0 where nothing says so."""
        if self.effect is not None:
            return self.effect.sign
        if self.traces is not None and self.traces.shows_effect:
            return 1 if self.traces.effect > 0 else -1
        return 0

    @property
    def has_no_change(self) -> bool:
        """Whether a comparison has shown that there is nothing to explain."""
        return self.effect is not None and self.effect.verdict in ("equivalent", "same")

    @property
    def change(self) -> float | None:
        """How much longer the head takes, as a fraction, where that is measured."""
        if self.effect is not None:
            return self.effect.cost
        return self.traces.effect if self.traces is not None and self.sign else None

    @property
    def change_us(self) -> float | None:
        """The same in microseconds of a step or a trace; None where it is not known."""
        base_us = self.effect.base_us if self.effect is not None else None
        if self.traces is not None:
            base_us = self.traces.base_us
        return None if base_us is None or not self.change else base_us * self.change

    def is_of_what_was_measured(self, one: Difference) -> bool:
        """Whether a difference happens on the kind of device that the change was measured on.

        A trace is of what is measured; counters are of any device.
        """
        if self.effect is None or one.source is Source.TRACE:
            return True
        return one.on_gpu in (None, self.effect.is_on_gpu)


def causes(differences: Sequence[Difference], question: Question) -> list[Difference]:
    """The differences that explain the change best, the best first; none where there is no change.

    A cause leans the way the change does, or no way that can be told, and happens on the kind of
    device that was measured. Kernels that wait for others are none.
    """
    if question.has_no_change:
        return []
    sign = question.sign
    candidates = [
        one
        for one in _told_once(differences)
        if not one.is_waiting
        and (not sign or one.leaning in (0, sign))
        and question.is_of_what_was_measured(one)
    ]

    def key(one: Difference) -> tuple[int, bool, bool, float]:
        is_elsewhere = one.source is not Source.TRACE and one.on_gpu not in (
            None,
            question.is_here_gpu,
        )
        cost = abs(one.cost_us) if one.cost_us is not None else 0.0
        return _rank(one, question), is_elsewhere, one.leaning < 0 and not sign, -cost

    return sorted(candidates, key=key)[:MOST]


def explained(differences: Iterable[Difference], question: Question) -> float | None:
    """How much of the change the differences of the traces add up to; None where that is unknown.

    Waiting is left out.
    """
    change = question.change
    if question.traces is None or not change or question.has_no_change:
        return None
    parts = [one.part for one in differences if one.part is not None and not one.is_waiting]
    return sum(parts) / change


def _rank(one: Difference, question: Question) -> _Rank:
    if one.source is Source.VARIABLES:
        return _Rank.CIRCUMSTANCE
    if one.source is Source.PACKAGES:
        return _Rank.PACKAGE
    if not one.is_exact:
        return _Rank.TIMED
    change_us = question.change_us
    if change_us is not None and abs(one.cost_us or 0.0) < _MINOR * abs(change_us):
        return _Rank.MINOR
    return _Rank.EXACT


def _told_once(differences: Sequence[Difference]) -> list[Difference]:
    """What several sources saw as one difference each, measured costs in place of guesses."""
    traced = [one for one in differences if one.source is Source.TRACE]
    named = {name for one in traced if one.is_exact for name in (one.name, *one.also)}
    counted = [
        one for one in differences if one.source is Source.COUNTERS and one.name not in named
    ]
    operators = {one.leaning for one in counted if one.what == "operators a step"}
    operators |= {one.leaning for one in traced if one.is_exact}
    counted = [
        one
        for one in counted
        # What operators make new is told by the operators.
        if not (one.name.startswith("new ") and one.leaning in operators)
    ]
    python = [one for one in counted if one.what in _PYTHON]
    counted = [one for one in counted if one.what not in _PYTHON]
    idle = [one for one in traced if one.name == "host outside operators"]
    traced = [one for one in traced if one not in idle]
    packages = [one for one in differences if one.source is Source.PACKAGES]
    others = [one for one in differences if one.source in (Source.VARIABLES, Source.KERNELS)]
    return [*others, *counted, *_python_once(python, idle), *_as_one(packages), *traced]


def _python_once(python: Sequence[Difference], idle: Sequence[Difference]) -> list[Difference]:
    """The engine's Python on each kind of device, with the host's time where that was traced."""
    found: list[Difference] = []
    for place in dict.fromkeys(one.on_gpu for one in python):
        here = [one for one in python if one.on_gpu is place]
        most = max(here, key=lambda one: abs(one.cost_us or 0.0))
        timed = next((one for one in idle if not place and one.leaning == most.leaning), None)
        if timed is not None:
            idle = [one for one in idle if one is not timed]
            most = replace(
                most,
                sentence=f"{most.sentence}; {timed.sentence}",
                cost_us=timed.cost_us,
                part=timed.part,
            )
        found.append(most)
    return [*found, *idle]


def _as_one(packages: Sequence[Difference]) -> list[Difference]:
    if len(packages) < 2:
        return [replace(one, sentence=f"another version of {one.sentence}") for one in packages]
    shown = ", ".join(one.sentence for one in packages[:_SHOWN_PACKAGES])
    more = len(packages) - _SHOWN_PACKAGES
    rest = f" and {more} more" if more > 0 else ""
    return [
        replace(
            packages[0],
            sentence=f"other versions of {len(packages)} packages: {shown}{rest}",
            also=tuple(one.name for one in packages[1:]),
        )
    ]
