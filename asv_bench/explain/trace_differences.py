"""Two sets of traces, joined by kernel or operator: what is beyond their noise."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from asv_bench.explain.difference import Difference, Source, more_or_less
from asv_bench.explain.step_profile import StepProfile, Work

BEYOND_NOISE = 5.0
"""Standard errors of a difference from which a time is told from noise, where every trace of one
end also lies beyond every trace of the other."""
LEAST_PART = 0.005
"""Of the base's traced time: a time that differs by less is not named."""
_MESSENGER = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)
_NOTHING = Work(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class JoinedTraces:
    """Traces of both ends at one pace, joined by name; see `TracePair`."""

    base: Sequence[StepProfile]
    head: Sequence[StepProfile]

    @property
    def unit(self) -> str:
        """What times are of: a step where all traces mark steps, else a trace."""
        return "step" if all(one.has_steps for one in (*self.base, *self.head)) else "trace"

    @property
    def is_device(self) -> bool:
        """Whether a device worked in any of the traces."""
        return any(one.is_device for one in (*self.base, *self.head))

    @property
    def totals_differ(self) -> bool:
        """Whether the traces as a whole differ beyond their noise."""
        return self._differ(
            [one.total_us for one in self.base], [one.total_us for one in self.head]
        )

    def differences(self) -> list[Difference]:
        """What differs beyond noise: first counts, then times of a call, then gaps."""
        counts = self._renamed() if self.is_device else []
        renamed = {name for one in counts for name in (one.name, *one.also)}
        names = [name for name in self._names if name not in renamed]
        by_time = sorted(names, key=self._moved_whole, reverse=True)
        differing = [one for name in by_time if (one := self._count(name)) is not None]
        counts += differing if self.is_device else _with_callees(differing)
        times = [one for name in names if (one := self._time(name)) is not None]
        return [*counts, *times, *self._around()]

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for one in (*self.base, *self.head) for name in one.work))

    def _work(self, name: str) -> tuple[list[Work], list[Work]]:
        base, head = (
            [one.work.get(name, _NOTHING) for one in side] for side in (self.base, self.head)
        )
        return base, head

    def _moved_whole(self, name: str) -> float:
        """How far the time in it and in what it calls moved."""
        sides = self._work(name)
        base, head = (statistics.fmean(one.whole_us for one in side) for side in sides)
        return abs(head - base)

    def _count(self, name: str) -> Difference | None:
        """A kernel or operator that one end calls more often."""
        base, head = self._work(name)
        before, after = ([round(one.calls, 6) for one in side] for side in (base, head))
        is_exact = len(set(before)) == len(set(after)) == 1
        if before == after or not (is_exact or self._differ(before, after, least=0.0)):
            return None
        calls = statistics.fmean(before), statistics.fmean(after)
        each = _each(base) or _each(head) or 0.0
        verb = "launched" if self.is_device else "called"
        times = more_or_less(*calls, "time", "times")
        return Difference(
            source=Source.TRACE,
            name=name,
            what=f"calls a {self.unit}",
            before=calls[0],
            after=calls[1],
            sentence=f"{name} is {verb} {times} a {self.unit}",
            is_exact=is_exact,
            leaning=1 if calls[1] > calls[0] else -1,
            on_gpu=self.is_device,
            cost_us=(cost := (calls[1] - calls[0]) * each),
            part=self._part(cost),
        )

    def _time(self, name: str) -> Difference | None:
        """A kernel or operator whose call takes longer, or less long."""
        base, head = self._work(name)
        if not all(one.calls for one in (*base, *head)):
            return None
        before, after = ([one.own_us / one.calls for one in side] for side in (base, head))
        calls = statistics.fmean(one.calls for one in head)
        least = LEAST_PART * self._base_us / calls
        if not self._differ(before, after, least=least):
            return None
        each = statistics.fmean(before), statistics.fmean(after)
        is_waiting = _MESSENGER.search(name) is not None
        waits = ", most of it waiting for other devices" if is_waiting else ""
        return Difference(
            source=Source.TRACE,
            name=name,
            what="µs a call",
            before=each[0],
            after=each[1],
            sentence=f"a call of {name} takes {moved(each)}{waits}",
            is_exact=False,
            leaning=1 if each[1] > each[0] else -1,
            on_gpu=self.is_device,
            is_waiting=is_waiting,
            cost_us=(cost := (each[1] - each[0]) * calls),
            part=self._part(cost),
        )

    def _renamed(self) -> list[Difference]:
        """Kernels that stand where others stood: as many calls, and a name of one end only."""
        gone: dict[str, tuple[float, list[Work]]] = {}
        new: dict[str, tuple[float, list[Work]]] = {}
        for name in self._names:
            base, head = self._work(name)
            before, after = ({round(one.calls, 6) for one in side} for side in (base, head))
            if after == {0.0} and len(before) == 1:
                gone[name] = (min(before), base)
            elif before == {0.0} and len(after) == 1:
                new[name] = (min(after), head)
        found = []
        for name, (calls, base) in gone.items():
            other = next((one for one, (count, _) in new.items() if count == calls), None)
            if other is None:
                continue
            _, head = new.pop(other)
            each = _each(base) or 0.0, _each(head) or 0.0
            sides = ([one.own_us / calls for one in side] for side in (base, head))
            leaning = (1 if each[1] > each[0] else -1) if self._differ(*sides) else 0
            found.append(
                Difference(
                    source=Source.TRACE,
                    name=other,
                    what="µs a call",
                    before=each[0],
                    after=each[1],
                    sentence=f"{other} runs in place of {name}: a call takes {moved(each)}",
                    leaning=leaning,
                    also=(name,),
                    on_gpu=True,
                    cost_us=(cost := (each[1] - each[0]) * calls),
                    part=self._part(cost),
                )
            )
        return found

    def _around(self) -> Iterator[Difference]:
        """Time in which nothing ran, and what a launch costs the host."""
        before, after = ([one.idle_us for one in side] for side in (self.base, self.head))
        if self._differ(before, after, least=LEAST_PART * self._base_us):
            times = statistics.fmean(before), statistics.fmean(after)
            name = "gaps between device work" if self.is_device else "host outside operators"
            why = "the device waits for the host" if self.is_device else "Python, not operators"
            if self.is_device:
                text = f"gaps between kernels and copies take {moved(times)} a {self.unit}: {why}"
            else:
                text = f"the host spends {moved(times)} a {self.unit} outside operators: {why}"
            yield Difference(
                source=Source.TRACE,
                name=name,
                what=f"µs a {self.unit}",
                before=times[0],
                after=times[1],
                sentence=text,
                is_exact=False,
                leaning=1 if times[1] > times[0] else -1,
                on_gpu=self.is_device,
                cost_us=(cost := times[1] - times[0]),
                part=self._part(cost),
            )
        before, after = ([one.launch_us for one in side] for side in (self.base, self.head))
        launches = statistics.fmean(one.launches for one in self.head)
        least = LEAST_PART * self._base_us / launches if launches else math.inf
        if self._differ(before, after, least=least):
            times = statistics.fmean(before), statistics.fmean(after)
            yield Difference(
                source=Source.TRACE,
                name="launch on the host",
                what="µs a launch",
                before=times[0],
                after=times[1],
                sentence=f"the host takes {moved(times)} for a launch",
                is_exact=False,
                leaning=1 if times[1] > times[0] else -1,
                on_gpu=True,
                cost_us=(times[1] - times[0]) * launches,
            )

    @cached_property
    def _base_us(self) -> float:
        return statistics.fmean(one.total_us for one in self.base)

    def _part(self, cost_us: float) -> float:
        return cost_us / self._base_us if self._base_us else 0.0

    def _differ(
        self, before: Sequence[float], after: Sequence[float], *, least: float = 0.0
    ) -> bool:
        """Whether two sides differ by `least` and beyond their noise, which two traces cannot show.

        Both sides share a standard deviation. It is at least what traced names scatter typically:
        that of a few values is often too small by chance.
        """
        if min(len(before), len(after)) < 2:
            return False
        change = statistics.fmean(after) - statistics.fmean(before)
        is_apart = min(after) > max(before) or max(after) < min(before)
        mean = (statistics.fmean(before) + statistics.fmean(after)) / 2
        spread = max(deviation(before, after), self._scatter * mean)
        error = spread * math.sqrt(1 / len(before) + 1 / len(after))
        return is_apart and abs(change) > BEYOND_NOISE * error and abs(change) >= least

    @cached_property
    def _scatter(self) -> float:
        """The typical standard deviation of a call's time as a fraction, weighted by time."""
        found: list[tuple[float, float]] = []
        for name in self._names:
            base, head = self._work(name)
            if all(one.calls for one in (*base, *head)):
                sides = [[one.own_us / one.calls for one in side] for side in (base, head)]
                mean = statistics.fmean([*sides[0], *sides[1]])
                spent = sum(one.own_us for one in (*base, *head))
                if mean > 0:
                    found.append((deviation(*sides) / mean, spent))
        half, seen = sum(spent for _, spent in found) / 2, 0.0
        for scatter, spent in sorted(found):
            seen += spent
            if seen >= half:
                return scatter
        return 0.0


def deviation(before: Sequence[float], after: Sequence[float]) -> float:
    """The standard deviation within two sides."""
    squares = [(one - statistics.fmean(side)) ** 2 for side in (before, after) for one in side]
    return math.sqrt(sum(squares) / max(1, len(squares) - 2))


def _each(side: Sequence[Work]) -> float | None:
    """The mean time of a call."""
    calls = sum(one.calls for one in side)
    return sum(one.own_us for one in side) / calls if calls else None


def moved(times: tuple[float, float], unit: str = " µs") -> str:
    """Two times in words."""
    before, after = times
    change = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
    return f"{after:,.4g}{unit} in place of {before:,.4g}{change}"


def _with_callees(differing: Sequence[Difference]) -> list[Difference]:
    """Operators whose calls changed by the same number as one: those that one of them calls.

    The first is the one with the most time in it and in what it calls.
    """
    groups: dict[float, list[Difference]] = {}
    for one in differing:
        groups.setdefault(one.change, []).append(one)
    return [_as_one(group) for group in groups.values()]


def _as_one(group: Sequence[Difference]) -> Difference:
    first, *others = group
    if not others:
        return first
    names = tuple(one.name for one in others)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    return replace(
        first,
        sentence=f"{first.sentence}, and with it {shown}",
        also=names,
        cost_us=sum(one.cost_us or 0.0 for one in group),
        part=sum(one.part or 0.0 for one in group),
        is_exact=all(one.is_exact for one in group),
    )
