"""Traces of both ends taken in turns, joined by kernel or operator: what is beyond their noise."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.explain.clue import Clue, Source, more_or_less
from asv_bench.explain.trace import TraceSummary
from asv_bench.words import first_of

BEYOND_NOISE = 5.0
"""Standard errors of a difference from which a time is told from noise, where every trace of one
end also lies beyond every trace of the other."""
LEAST_PART = 0.005
"""Of the base's traced time: a time that differs by less is not named. A machine's pace is told
from what takes at least so much of a trace."""
_PACE_NAMES, _PACE_BEYOND_NOISE, _LEAST_PACE = 5, 12.0, 0.02
"""From so many names a pace is told; the ends' differ by so many standard errors, and so much."""
_MESSENGER = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)

Trace: TypeAlias = Sequence[TraceSummary]
"""What one run left: a summary of each file, such as those of ranks, which are added up."""
Pair: TypeAlias = tuple[float, float]
"""A figure of the base, and of the head."""
Figures: TypeAlias = npt.NDArray[np.float64]
"""Of all traces, the base's first."""


class TracePair:
    """Traces of both ends, in the order in which they were taken.

    A machine that was busy during a trace makes all that is in it longer alike. So each trace has a
    pace: the median over its kernels or operators of how long a call takes, against the mean of all
    traces. Times are compared at one pace. Where the pace itself differs between the ends beyond
    its noise, that is a clue of its own.
    """

    def __init__(self, base: Sequence[Trace], head: Sequence[Trace]) -> None:
        traces = [*base, *head]
        parts = [part for trace in traces for part in trace]
        self._bases = len(base)
        self.unit = "step" if all(part.steps for part in parts) else "trace"
        self.is_device = any(part.is_device for part in parts)
        works = [_work(trace) for trace in traces]
        self._names = list(dict.fromkeys(name for work in works for name in work))
        table = [[work.get(name, np.zeros(3)) for work in works] for name in self._names]
        self._calls, *times = np.moveaxis(np.array(table), 2, 0)
        around = np.array([_around_work(trace) for trace in traces]).T
        self._spans, _, self._launches, _ = around
        self._is_everywhere = (self._calls > 0).all(axis=1)
        self._pace = self._paces(times[0])
        self._own, self._whole = (one / self._pace for one in times)
        self._span, self._idle, _, launching = around / self._pace
        with np.errstate(all="ignore"):
            self._each = self._own / self._calls  # not a number where there is no call
            self._launch = np.nan_to_num(launching / self._launches)
        self._scatter = self._typical_scatter()
        self._pace_differs = self._differ(
            self._pace, _LEAST_PACE, beyond=_PACE_BEYOND_NOISE, scatter=0.0
        )
        self._end_paces: Pair = self._mean(self._pace) if self._pace_differs else (1.0, 1.0)

    @property
    def base_us(self) -> float:
        """Traced time of the base."""
        return float(self._mean(self._span)[0] * self._end_paces[0])

    @property
    def effect(self) -> float:
        """Head over base, minus 1."""
        (before, after), paces = self._mean(self._span), self._end_paces
        return float(after * paces[1] / (before * paces[0]) - 1)

    @property
    def shows_effect(self) -> bool:
        """Whether the traces as a whole differ beyond their noise."""
        return self._pace_differs or self._differ(self._span)

    def to_json(self) -> dict[str, Any]:
        """How long each trace took, as JSON-ready values."""
        base, head = self._sides(self._spans)
        return {"unit": self.unit, "base_us": base.tolist(), "head_us": head.tolist()}

    def clues(self) -> list[Clue]:
        """What differs beyond noise: counts, times of a call, gaps, and the pace of everything."""
        counts = list(self._renamed()) if self.is_device else []
        told = {name for one in counts for name in (one.name, *one.also)}
        rows = [row for row, name in enumerate(self._names) if name not in told]
        before, after = self._mean(self._whole)
        # First what moved the most, with what it calls.
        by_time = sorted(rows, key=lambda row: -abs(after[row] - before[row]))
        called = [one for row in by_time for one in self._count(row)]
        counts += called if self.is_device else _with_callees(called)
        times = [one for row in rows for one in self._time(row)]
        pace = [self._of_everything()] if self._pace_differs else []
        return [*counts, *times, *self._around(), *pace]

    def _clue(self, name: str, what: str, sides: Pair, each: float, text: str, **more: Any) -> Clue:
        """What one more of the figure costs is `each`."""
        before, after = map(float, sides)
        part = float((after - before) * each / self._mean(self._span)[0])
        more = {"part": part, "on_gpu": self.is_device, **more}
        return Clue.of_figures(Source.TRACE, name, what, (before, after), text, float(each), **more)

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

    def _renamed(self) -> Iterator[Clue]:
        """Kernels that stand where others stood: as many calls, and a name of one end only."""
        base, head = self._sides(np.round(self._calls, 6))
        is_steady = (np.ptp(base, axis=1) == 0) & (np.ptp(head, axis=1) == 0)
        new = list(np.flatnonzero(is_steady & (base[:, 0] == 0)))
        for old in np.flatnonzero(is_steady & (head[:, 0] == 0)):
            calls = base[old, 0]
            if (other := next((row for row in new if head[row, 0] == calls), None)) is None:
                continue
            new.remove(other)
            name, before = self._names[other], self._names[old]
            times = np.hstack([self._sides(self._each[old])[0], self._sides(self._each[other])[1]])
            sides = self._mean(times)
            text = f"{name} runs in place of {before}: a call takes {_moved(sides)}"
            leans = {} if self._differ(times) else {"leaning": 0}
            yield self._clue(name, "µs a call", sides, calls, text, also=(before,), **leans)

    def _time(self, row: int) -> list[Clue]:
        """A kernel or operator whose call takes longer, or less long."""
        name, is_waiting = self._names[row], _MESSENGER.search(self._names[row]) is not None
        words = f"a call of {name} takes", ", most of it waiting for other devices" * is_waiting
        times = self._each[row], self._calls[row]
        return self._timed(name, "call", times, words, is_waiting=is_waiting)

    def _around(self) -> list[Clue]:
        """Time in which nothing ran, and what a launch costs the host."""
        name = "host outside operators"
        words = "the host spends", f" a {self.unit} outside operators: Python, not operators"
        if self.is_device:
            name = "gaps between device work"
            why = f" a {self.unit}: the device waits for the host"
            words = "gaps between kernels and copies take", why
        idle = self._timed(name, self.unit, (self._idle, np.ones_like(self._idle)), words)
        name, words = "launch on the host", ("the host takes", " for a launch")
        times = self._launch, self._launches
        return idle + self._timed(name, "launch", times, words, on_gpu=True, part=None)

    def _timed(
        self,
        name: str,
        unit: str,
        times: tuple[Figures, Figures],  # of each, and how many there are
        words: tuple[str, str],  # before and after what is said of the times
        **more: Any,
    ) -> list[Clue]:
        """Times that differ by `LEAST_PART` of the base, at as many calls as the head has."""
        often = self._mean(times[1])[1]
        least = LEAST_PART * self._mean(self._span)[0]
        if not often or not self._differ(times[0], least / often):
            return []
        sides = self._mean(times[0])
        text = f"{words[0]} {_moved(sides)}{words[1]}"
        return [self._clue(name, f"µs a {unit}", sides, often, text, is_exact=False, **more)]

    def _of_everything(self) -> Clue:
        """The pace of all that was traced, as a clue."""
        kind, paces = "kernel" if self.is_device else "operator", self._end_paces
        busy = self._mean(self._own.sum(axis=0))[0]
        part = float((paces[1] - paces[0]) * busy / self.base_us)
        text = (
            f"a call of any {kind} takes {_moved(paces, '')} of the mean: not one {kind} but "
            f"clocks, threads, or how everything was built"
        )
        more = {"is_exact": False, "part": part}
        return self._clue(f"every {kind}", "pace of its calls", paces, busy, text, **more)

    def _paces(self, own: Figures) -> Figures:
        """How long each trace took for a call, against the mean of all traces."""
        is_large = (own >= LEAST_PART * self._spans).all(axis=1) & self._is_everywhere
        if is_large.sum() < _PACE_NAMES:
            return np.ones_like(self._spans)
        each = own[is_large] / self._calls[is_large]
        return np.asarray(np.median(each / each.mean(axis=1, keepdims=True), axis=0))

    def _sides(self, figures: Figures) -> tuple[Figures, Figures]:
        return figures[..., : self._bases], figures[..., self._bases :]

    def _mean(self, figures: Figures) -> tuple[Any, Any]:
        base, head = (side.mean(axis=-1) for side in self._sides(figures))
        return base, head

    def _differ(
        self,
        figures: Figures,
        least: float = 0.0,
        *,
        beyond: float = BEYOND_NOISE,
        scatter: float | None = None,
    ) -> bool:
        """Whether the ends differ by `least` and beyond their noise, which two traces cannot show.

        Both sides share a standard deviation. It is at least what traced names scatter typically,
        or `scatter`: that of a few values is often too small by chance.
        """
        base, head = self._sides(figures)
        if min(len(base), len(head)) < 2:
            return False
        change, mean = abs(head.mean() - base.mean()), (head.mean() + base.mean()) / 2
        scatter = self._scatter if scatter is None else scatter
        error = max(self._deviation(figures), scatter * mean)
        error *= math.sqrt(1 / len(base) + 1 / len(head))
        are_apart = head.min() > base.max() or head.max() < base.min()
        return bool(are_apart and change > beyond * error and change >= least)

    def _deviation(self, figures: Figures) -> Any:
        """The standard deviation within the two sides."""
        sides = self._sides(figures)
        squares = [side.var(axis=-1) * side.shape[-1] for side in sides]
        return np.sqrt(sum(squares) / max(1, figures.shape[-1] - 2))

    def _typical_scatter(self) -> float:
        """The typical standard deviation of a call's time as a fraction, weighted by time."""
        rows = self._is_everywhere & (self._own.sum(axis=1) > 0)
        if not rows.any():
            return 0.0
        scatter = self._deviation(self._each[rows]) / self._each[rows].mean(axis=1)
        order = np.argsort(scatter)
        spent = np.cumsum(self._own[rows].sum(axis=1)[order])
        return float(scatter[order][np.searchsorted(spent, spent[-1] / 2)])


def _around_work(trace: Trace) -> list[float]:
    """The span of a step, the time in which nothing works, launches, and their time."""
    parts = [(one.span_us, one.idle_us, one.launches, one.launch_us) for one in trace]
    steps = [one.steps or 1 for one in trace]
    return [float(sum(np.divide(figure, steps))) for figure in zip(*parts, strict=True)]


def _work(trace: Trace) -> dict[str, Figures]:
    """Calls a step, their own time, and that with all they call, by name."""
    found: dict[str, Figures] = {}
    for part in trace:
        for one in part.work:
            figures = np.array([one.calls, one.total_us, one.whole_us]) / (part.steps or 1)
            found[one.name] = found.get(one.name, 0.0) + figures
    return found


def _moved(times: Pair, unit: str = " µs") -> str:
    """Two times in words."""
    before, after = times
    change = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
    return f"{after:,.4g}{unit} in place of {before:,.4g}{change}"


def _with_callees(called: Sequence[Clue]) -> Iterator[Clue]:
    """Operators whose calls changed by the same number as one: those that one of them calls.

    The first is the one with the most time in it and in what it calls.
    """
    groups: dict[float, list[Clue]] = {}
    for one in called:
        groups.setdefault(one.change, []).append(one)
    for first, *others in groups.values():
        names = tuple(one.name for one in others)
        group = (first, *others)
        yield replace(
            first,
            sentence=first.sentence + (f", and with it {first_of(names, 3)}" if others else ""),
            also=names,
            cost_us=sum(one.cost_us or 0.0 for one in group),
            part=sum(one.part or 0.0 for one in group),
            is_exact=all(one.is_exact for one in group),
        )
