"""Traces of both ends taken in turns, joined by kernel or operator: what is beyond their noise."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.explain.clue import Clue, Source, more_or_less
from asv_bench.explain.trace import TraceSummary

BEYOND_NOISE = 5.0
"""Standard errors of a difference from which a time is told from noise, where every trace of one
end also lies beyond every trace of the other."""
LEAST_PART = 0.005
"""Of the base's traced time: a time that differs by less is not named. A machine's pace is told
from what takes at least so much of a trace."""
_PACE_NAMES = 5
"""From so many names a pace is told."""
_MESSENGER = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)

Trace: TypeAlias = Sequence[TraceSummary]
"""What one run left: a summary of each file, such as those of ranks, which are added up."""
Figures: TypeAlias = npt.NDArray[np.float64]
"""Of all traces, the base's first."""


class TracePair:
    """Traces of both ends, in the order in which they were taken.

    A machine that was busy during a trace makes all that is in it longer alike. So each trace has a
    pace: the median over its kernels or operators of how long a call takes, against the mean of all
    traces. Times are compared at one pace.
    """

    def __init__(self, base: Sequence[Trace], head: Sequence[Trace]) -> None:
        traces = [*base, *head]
        parts = [part for trace in traces for part in trace]
        self._bases = len(base)
        self.unit = "step" if all(part.steps for part in parts) else "trace"
        self.is_device = any(part.is_device for part in parts)
        works = [_work(trace) for trace in traces]
        self._names = list(dict.fromkeys(name for work in works for name in work))
        table = [[work.get(name, np.zeros(2)) for work in works] for name in self._names]
        self._calls, own = np.moveaxis(np.array(table), 2, 0)
        self._spans, idle, self._launches, launching = np.array(list(map(_around, traces))).T
        pace = self._paces(own)
        self._own, self._span, self._idle = own / pace, self._spans / pace, idle / pace
        with np.errstate(all="ignore"):
            self._each = self._own / self._calls  # not a number where there is no call
            self._launch = np.nan_to_num(launching / pace / self._launches)
        self._scatter = self._typical_scatter()

    @property
    def base_us(self) -> float:
        """Traced time of the base, at the pace of all traces."""
        return float(self._mean(self._span)[0])

    @property
    def effect(self) -> float:
        """Head over base, minus 1, at one pace."""
        before, after = self._mean(self._span)
        return float(after / before - 1)

    @property
    def shows_effect(self) -> bool:
        """Whether the traces as a whole differ beyond their noise."""
        return self._differ(self._span)

    def to_json(self) -> dict[str, Any]:
        """How long each trace took, as JSON-ready values."""
        base, head = self._sides(self._spans)
        return {"unit": self.unit, "base_us": base.tolist(), "head_us": head.tolist()}

    def clues(self) -> Iterator[Clue]:
        """What differs beyond noise: counts, times of a call, of gaps and of a launch."""
        for row, name in enumerate(self._names):
            yield from self._count(row)
            is_waiting = bool(_MESSENGER.search(name))
            words = f"A call of {name} takes", ", most of it waiting for others" * is_waiting
            yield from self._timed(
                name, "call", self._each[row], self._calls[row], words, is_waiting=is_waiting
            )
        name = "host outside operators"
        words = "The host spends", f" a {self.unit} outside operators: Python, not operators"
        if self.is_device:
            name = "gaps between device work"
            words = "Gaps between kernels and copies take", f" a {self.unit}: the device waits"
        yield from self._timed(name, self.unit, self._idle, np.ones_like(self._idle), words)
        words = "The host takes", " for a launch"
        # The device may work meanwhile: it is no part of the traced time.
        yield from self._timed(
            "launch on the host", "launch", self._launch, self._launches, words, part=None
        )

    def _clue(
        self, name: str, what: str, sides: tuple[Any, Any], each: float, text: str, **more: Any
    ) -> Clue:
        """What one more of the figure costs is `each`."""
        before, after = map(float, sides)
        cost_us = float((after - before) * each)
        more = {"part": cost_us / float(self._mean(self._span)[0]), **more}
        return Clue(Source.TRACE, name, what, before, after, text, cost_us, **more)

    def _count(self, row: int) -> Iterator[Clue]:
        """A kernel or operator that one end calls more often."""
        name, counts = self._names[row], np.round(self._calls[row], 6)
        base, head = self._sides(counts)
        is_exact = bool(np.ptp(base) == np.ptp(head) == 0)
        if np.array_equal(base, head) or not (is_exact or self._differ(counts)):
            return
        calls, used = self._mean(counts), self._mean(self._own[row])
        each = next(spent / number for spent, number in zip(used, calls, strict=True) if number)
        verb = "launched" if self.is_device else "called"
        text = f"{name} is {verb} {more_or_less(*calls, 'time', 'times')} a {self.unit}"
        yield self._clue(name, f"calls a {self.unit}", calls, each, text, is_exact=is_exact)

    def _timed(
        self,
        name: str,
        unit: str,
        each: Figures,
        calls: Figures,
        words: tuple[str, str],  # before and after what is said of the times
        **more: Any,
    ) -> Iterator[Clue]:
        """Times that differ by `LEAST_PART` of the base, at as many calls as the head has."""
        often = self._mean(calls)[1]
        least = LEAST_PART * self._mean(self._span)[0]
        if not often or not self._differ(each, least / often):
            return
        before, after = sides = self._mean(each)
        change = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
        text = f"{words[0]} {after:,.4g} µs in place of {before:,.4g}{change}{words[1]}"
        yield self._clue(name, f"µs a {unit}", sides, often, text, is_exact=False, **more)

    def _paces(self, own: Figures) -> Figures:
        """How long each trace took for a call, against the mean of all traces."""
        is_large = (own >= LEAST_PART * self._spans).all(axis=1) & (self._calls > 0).all(axis=1)
        if is_large.sum() < _PACE_NAMES:
            return np.ones_like(self._spans)
        each = own[is_large] / self._calls[is_large]
        return np.asarray(np.median(each / each.mean(axis=1, keepdims=True), axis=0))

    def _sides(self, figures: Figures) -> tuple[Figures, Figures]:
        return figures[..., : self._bases], figures[..., self._bases :]

    def _mean(self, figures: Figures) -> tuple[Any, Any]:
        base, head = (side.mean(axis=-1) for side in self._sides(figures))
        return base, head

    def _differ(self, figures: Figures, least: float = 0.0) -> bool:
        """Whether the ends differ by `least` and beyond their noise, which two traces cannot show.

        Both sides share a standard deviation. It is at least what traced names scatter typically:
        that of a few values is often too small by chance.
        """
        base, head = self._sides(figures)
        if min(len(base), len(head)) < 2:
            return False
        change, mean = abs(head.mean() - base.mean()), (head.mean() + base.mean()) / 2
        error = max(self._deviation(figures), self._scatter * mean)
        error *= math.sqrt(1 / len(base) + 1 / len(head))
        are_apart = head.min() > base.max() or head.max() < base.min()
        return bool(are_apart and change > BEYOND_NOISE * error and change >= least)

    def _deviation(self, figures: Figures) -> Any:
        """The standard deviation within the two sides."""
        sides = self._sides(figures)
        squares = [side.var(axis=-1) * side.shape[-1] for side in sides]
        return np.sqrt(sum(squares) / max(1, figures.shape[-1] - 2))

    def _typical_scatter(self) -> float:
        """The typical standard deviation of a call's time as a fraction, weighted by time."""
        rows = (self._calls > 0).all(axis=1) & (self._own.sum(axis=1) > 0)
        if not rows.any():
            return 0.0
        scatter = self._deviation(self._each[rows]) / self._each[rows].mean(axis=1)
        order = np.argsort(scatter)
        spent = np.cumsum(self._own[rows].sum(axis=1)[order])
        return float(scatter[order][np.searchsorted(spent, spent[-1] / 2)])


def _around(trace: Trace) -> list[float]:
    """The span of a step, the time in which nothing works, launches, and their time."""
    parts = [(one.span_us, one.idle_us, one.launches, one.launch_us) for one in trace]
    steps = [one.steps or 1 for one in trace]
    return [float(sum(np.divide(figure, steps))) for figure in zip(*parts, strict=True)]


def _work(trace: Trace) -> dict[str, Figures]:
    """Calls a step and their time, by name."""
    found: dict[str, Figures] = {}
    for part in trace:
        for one in part.work:
            figures = np.array([one.calls, one.total_us]) / (part.steps or 1)
            found[one.name] = found.get(one.name, 0.0) + figures
    return found
