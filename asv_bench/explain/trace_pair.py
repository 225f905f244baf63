"""Traces of both ends taken in turns, joined by kernel or operator: what is beyond their noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.explain.clue import Clue, Source, more_or_less, number
from asv_bench.explain.trace import MESSENGER, TOLD, TraceSummary

BEYOND_NOISE, _OF_TWO = 6.0, 12.0
"""Standard errors of a difference from which a time is told from noise, where every trace of one
end also lies beyond every trace of the other; two traces say less of their noise than more do."""
LEAST_PART = 0.005
"""Of the base's traced time: a time that differs by less is not named. A machine's pace is told
from what takes at least so much of a trace."""
_HIDDEN = 0.01
"""Of a name's time: where more runs beside others, that is said."""
_LEAST = 1e-9
_ALIKE = 0.02
"""Standard deviation of a rank's own work beside that of others, at least."""
_PACE_NAMES = 5
"""From so many names a pace is told."""

Trace: TypeAlias = Sequence[TraceSummary]
"""What one run left: a summary of each file, such as those of ranks, which are added up."""
Figures: TypeAlias = npt.NDArray[np.float64]
"""Of all traces, the base's first."""


class TracePair:
    """Traces of both ends, in the order in which they were taken.

    A machine that was busy during a trace makes all that is in it longer alike. So each trace has a
    pace: the median over its kernels or operators of how long a call takes, against the mean of all
    traces. Times are compared at one pace.

    They make one account: each moment of a trace is one name's, or a gap's, so that what names and
    gaps differ by adds up to what the traces differ by. A name's time is without that in which it
    runs beside another that holds the step up already.

    What is told from noise also beats an A/A of the traces: sides that have swapped two of their
    traces differ by nothing else than noise, and less in everything that the account has.
    """

    def __init__(self, base: Sequence[Trace], head: Sequence[Trace]) -> None:
        traces = [*base, *head]
        parts = [part for trace in traces for part in trace]
        self._bases = len(base)
        self.is_profile = any(part.is_profile for part in parts)
        unit = "life" if self.is_profile else "trace"
        self.unit = "step" if all(part.steps for part in parts) else unit
        self.is_device = any(part.is_device for part in parts)
        # Functions of one name in several files are told apart, and a moved one is the same.
        seen = [{(one.name, one.file) for part in trace for one in part.work} for trace in traces]
        counts = [Counter(name for name, _ in functions) for functions in seen]
        alike = {name for count in counts for name in count if count[name] > 1}
        works = [_work(trace, alike) for trace in traces]
        self._names = list(dict.fromkeys(name for work in works for name in work))
        table = [[work.get(name, np.zeros(3)) for work in works] for name in self._names]
        self._calls, own, self._hidden = np.moveaxis(np.array(table), 2, 0)
        around = np.array([_around(trace) for trace in traces])
        self._spans, idle, self._launches, launch, launching = around.T
        pace = self._paces(own + self._hidden)
        self._own, self._span, self._idle = own / pace, self._spans / pace, idle / pace
        with np.errstate(all="ignore"):
            self._each = self._own / self._calls  # not a number where there is no call
            self._launch = np.nan_to_num(launch / pace / self._launches)
        self._launching = launching / pace
        # [its own work and waiting, ranks, traces]
        self._ranks = np.empty((2, 0, len(traces)))
        if len({*map(len, traces)}) == 1 < len(traces[0]) and all(part.alone_us for part in parts):
            each = [[(part.alone_us, part.waiting_us) for part in trace] for trace in traces]
            self._ranks = np.array(each).T
        # Where some counts vary between traces of one end, others differ by chance as well.
        sides = self._sides(np.round(self._calls, 6))
        self._are_counts_exact = not any(np.ptp(side, axis=1).any() for side in sides)
        self._scatter = self._typical_scatter()
        self._noise = self._in_mixed_sides()

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
        return bool(self._errors(self._span) > BEYOND_NOISE)

    def to_json(self) -> dict[str, Any]:
        """How long each trace took, as JSON-ready values."""
        base, head = self._sides(self._spans)
        return {"unit": self.unit, "base_us": base.tolist(), "head_us": head.tolist()}

    def clues(self) -> Iterator[Clue]:
        """What differs beyond noise: a rank, counts, times of a call, of gaps and of a launch."""
        yield from self.slow_rank()
        for row, name in enumerate(self._names):
            yield from self._count(row)
            is_waiting = name == TOLD or bool(MESSENGER.search(name))
            words = f"A call of {name} takes", ", most of it waiting for others" * is_waiting
            if self.is_profile:
                words = words[0], " without other functions"
            elif self._hidden[row].sum() > _HIDDEN * self._own[row].sum():
                words = words[0], " beside what runs before it" + words[1]
            yield from self._timed(
                name, "call", self._each[row], self._calls[row], words, is_waiting=is_waiting
            )
        words = "The host takes", " for a launch"
        # Most of a launch may be hidden behind the device's work.
        cost_us = float(np.subtract(*self._mean(self._launching)[::-1]))
        name, us = "launch on the host", self._launch
        launch = list(self._timed(name, "launch", us, self._launches, words, cost_us=cost_us))
        yield from launch
        idle = self._idle - self._launching if launch else self._idle
        name = "host outside operators"
        words = "The host spends", f" a {self.unit} outside operators: Python, not operators"
        if self.is_device:
            name = "gaps between device work"
            words = "Gaps between kernels and copies take", f" a {self.unit}: the device waits"
        yield from self._timed(name, self.unit, idle, np.ones_like(idle), words)

    def slow_rank(self) -> Iterator[Clue]:
        """The rank whose own work differs, and for which others wait.

        It is told from others in the same trace, which a busy machine makes as long.
        """
        befores, afters = self._mean(self._ranks)
        (own, waiting), own_work = afters - befores, self._ranks[0]
        most = int(np.argmax(np.abs(own))) if own.size else 0
        others = [rank for rank in range(own.size) if rank != most]
        waits = [rank for rank in others if waiting[rank] * own[most] > 0]
        if not waits or abs(own[most]) < LEAST_PART * self.base_us / own.size:
            return
        beside = own_work[most] / np.median(own_work[others], axis=0)
        if self._errors(beside, scatter=_ALIKE) <= self._noise:
            return
        before, after = float(befores[0, most]), float(afters[0, most])
        more, less = ("more", "") if after > before else ("less", " less")
        who = " and ".join(f"rank {rank}" for rank in waits)
        text = (
            f"Rank {most} takes {abs(after - before):,.0f} µs a {self.unit} {more} by itself "
            f"({after:,.0f} in place of {before:,.0f}), and {who} wait{'s' * (len(waits) == 1)}"
            f"{less} for it"
        )
        told = f"rank {most}", f"µs a {self.unit} by itself", before, after, text
        yield Clue(Source.TRACE, *told, own.size * (after - before), is_exact=False)

    def _clue(
        self, name: str, what: str, sides: tuple[Any, Any], each: float, text: str, **more: Any
    ) -> Clue:
        """What one more of the figure costs is `each`, unless the whole `cost_us` is given."""
        before, after = map(float, sides)
        cost_us = more.pop("cost_us", float((after - before) * each))
        source = Source.FUNCTIONS if self.is_profile else Source.TRACE
        part = cost_us / self.base_us
        return Clue(source, name, what, before, after, text, cost_us, part, **more)

    def _count(self, row: int) -> Iterator[Clue]:
        """A kernel or operator that one end calls more often."""
        name, counts = self._names[row], np.round(self._calls[row], 6)
        base, head = self._sides(counts)
        is_exact = bool(np.ptp(base) == np.ptp(head) == 0)
        if np.array_equal(base, head) or not (is_exact or self._differ(counts)):
            return
        least = 0.0 if self._are_counts_exact else LEAST_PART * self.base_us
        calls, used = self._mean(counts), self._mean(self._own[row])
        # As a call takes where there are more of them.
        each = used[int(calls[1] > calls[0])] / max(calls)
        if abs(calls[1] - calls[0]) * each < least:
            return
        verb = "launched" if self.is_device else "called"
        text = f"{name} is {verb} {more_or_less(*calls, 'time', 'times')} a {self.unit}"
        if self.is_profile:
            text = f"{name} {number(calls[0])} → {number(calls[1])} calls a {self.unit}"
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
        """Times that differ by `LEAST_PART` of the base, at as many calls as both ends have."""
        often = min(self._mean(calls))
        if not often or not self._differ(each, LEAST_PART * self.base_us / often):
            return
        before, after = sides = self._mean(each)
        change = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
        now, then = (f"{one:,.0f}" if one >= 1000 else f"{one:.4g}" for one in (after, before))
        text = f"{words[0]} {now} µs in place of {then}{change}{words[1]}"
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
        """Whether the ends differ by `least` and beyond noise, which one trace cannot show."""
        return bool(self._errors(figures, least) > self._noise)

    def _errors(self, figures: Figures, least: Any = 0.0, scatter: float | None = None) -> Any:
        """By how many standard errors the two sides differ; 0 where they overlap, or by `least`.

        Both sides share a standard deviation of the logarithms, as what disturbs a trace makes
        times longer by a part of them. It is at least `scatter`, by default what traced names
        scatter typically: that of a few values is often too small by chance.
        """
        base, head = self._sides(figures)
        (before, after), sizes = self._mean(figures), (base.shape[-1], head.shape[-1])
        logs = np.log(np.maximum(figures + np.asarray(least)[..., None], _LEAST))
        with np.errstate(all="ignore"):
            error = np.maximum(self._deviation(logs), scatter or self._scatter)
            error *= math.sqrt(sum(1 / size for size in sizes))
            change = abs(np.subtract(*self._mean(logs))) / error
            are_apart = (head.min(-1) > base.max(-1)) | (head.max(-1) < base.min(-1))
            is_told = are_apart & (abs(after - before) >= least) & (min(sizes) > 1)
        return np.where(is_told, change, 0.0)

    def _in_mixed_sides(self) -> float:
        """The errors that a difference has to beat: what sides with two traces swapped show."""
        count, bases = len(self._spans), self._bases
        often = np.append(np.min(self._mean(self._calls), axis=0), 1)
        least = LEAST_PART * self.base_us / np.maximum(often, _LEAST)
        figures = np.vstack([self._each, self._idle])
        found = _OF_TWO if min(bases, count - bases) <= 2 else BEYOND_NOISE
        for one, other in product(range(bases), range(bases, count)):
            mixed = np.arange(count)
            mixed[[one, other]] = other, one
            found = max(found, float(self._errors(figures[:, mixed], least).max()))
        return found

    def _deviation(self, figures: Figures) -> Any:
        """The standard deviation within the two sides."""
        squares = [side.var(axis=-1) * side.shape[-1] for side in self._sides(figures)]
        return np.sqrt(sum(squares) / max(1, figures.shape[-1] - 2))

    def _typical_scatter(self) -> float:
        """The typical standard deviation of a call's time as a fraction, weighted by time."""
        rows = (self._calls > 0).all(axis=1) & (self._own.sum(axis=1) > 0)
        if not rows.any():
            return 0.0
        scatter = self._deviation(self._each[rows]) / self._each[rows].mean(axis=1)
        spent = self._own[rows].sum(axis=1)
        return float(np.quantile(scatter, 0.5, weights=spent, method="inverted_cdf"))


def _around(trace: Trace) -> list[float]:
    """The span of a step, the time in which nothing works, launches, their time, and in gaps."""
    figures = ("span_us", "idle_us", "launches", "launch_us", "launching_us")
    return [sum(getattr(one, name) / (one.steps or 1) for one in trace) for name in figures]


def _work(trace: Trace, alike: Collection[str]) -> dict[str, Figures]:
    """Calls a step, their time in the account and beside it, by name."""
    found: dict[str, Figures] = {}
    for part in trace:
        for one in part.work:
            times = one.calls, one.total_us - one.hidden_us, one.hidden_us
            name = f"{one.name} ({one.file})" if one.name in alike else one.name
            found[name] = found.get(name, 0.0) + np.array(times) / (part.steps or 1)
    return found
