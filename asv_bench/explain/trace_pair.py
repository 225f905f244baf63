"""Traces of both ends taken in turns, and how fast the machine was in each of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from asv_bench.explain.difference import Difference, Source
from asv_bench.explain.step_profile import StepProfile, Work
from asv_bench.explain.trace_differences import JoinedTraces, deviation, moved

_LEAST_NAMES, _LEAST_SHARE = 5, 0.005
"""A machine's pace is told from so many names, each of at least so much of the time."""
_BEYOND_NOISE = 12.0
"""Standard errors by which the pace of the ends must differ."""
_LEAST_CHANGE = 0.02


@dataclass(frozen=True)
class TracePair:
    """Traces of both ends, as many of each.

    A machine that was busy during a trace makes all that is in it longer alike. So each trace has a
    pace: the median over its kernels or operators of how long a call takes, against the mean of all
    traces. Times are compared at one pace. Where the pace itself differs between the ends beyond
    its noise, that is a difference of its own.

    Attributes
    ----------
    base, head
        In the order in which they were taken.
    """

    base: Sequence[StepProfile]
    head: Sequence[StepProfile]

    @property
    def unit(self) -> str:
        """What times are of: a step where all traces mark steps, else a trace."""
        return self._joined.unit

    @property
    def base_us(self) -> float:
        """Traced time of the base."""
        return self._means[0]

    @property
    def effect(self) -> float:
        """Head over base, minus 1."""
        before, after = self._means
        return after / before - 1

    @property
    def shows_effect(self) -> bool:
        """Whether the traces as a whole differ beyond their noise."""
        return self._pace_differs or self._joined.totals_differ

    def differences(self) -> list[Difference]:
        """What differs beyond noise: counts, times of a call, gaps, and the pace of everything."""
        return [*self._joined.differences(), *([self._pace()] if self._pace_differs else [])]

    @cached_property
    def _paces(self) -> tuple[list[float], list[float]]:
        every = [*self.base, *self.head]
        calls = {
            name: [one.work[name].own_us / one.work[name].calls for one in every]
            for name in every[0].work
            if all(_is_large(one, name) for one in every)
        }
        if len(calls) < _LEAST_NAMES:
            return [1.0] * len(self.base), [1.0] * len(self.head)
        means = {name: statistics.fmean(times) for name, times in calls.items()}
        paces = [
            statistics.median(times[place] / means[name] for name, times in calls.items())
            for place in range(len(every))
        ]
        return paces[: len(self.base)], paces[len(self.base) :]

    @cached_property
    def _joined(self) -> JoinedTraces:
        sides = [
            [_at_pace(one, pace) for one, pace in zip(side, paces, strict=True)]
            for side, paces in zip((self.base, self.head), self._paces, strict=True)
        ]
        return JoinedTraces(*sides)

    @property
    def _pace_differs(self) -> bool:
        before, after = self._paces
        if min(len(before), len(after)) < 2:
            return False
        change = abs(statistics.fmean(after) - statistics.fmean(before))
        error = deviation(before, after) * math.sqrt(1 / len(before) + 1 / len(after))
        is_apart = min(after) > max(before) or max(after) < min(before)
        return is_apart and change > max(_BEYOND_NOISE * error, _LEAST_CHANGE)

    @property
    def _mean_paces(self) -> tuple[float, float]:
        if not self._pace_differs:
            return 1.0, 1.0
        before, after = (statistics.fmean(side) for side in self._paces)
        return before, after

    @property
    def _means(self) -> tuple[float, float]:
        before, after = (
            pace * statistics.fmean(one.total_us for one in side)
            for pace, side in zip(
                self._mean_paces, (self._joined.base, self._joined.head), strict=True
            )
        )
        return before, after

    def _pace(self) -> Difference:
        before, after = self._mean_paces
        busy = statistics.fmean(
            sum(work.own_us for work in one.work.values()) for one in self._joined.base
        )
        cost = (after - before) * busy
        kind = "kernel" if self._joined.is_device else "operator"
        return Difference(
            source=Source.TRACE,
            name=f"every {kind}",
            what="pace of its calls",
            before=before,
            after=after,
            sentence=(
                f"a call of any {kind} takes {moved((before, after), '')} of the mean: not one "
                f"{kind} but clocks, threads, or how everything was built"
            ),
            is_exact=False,
            leaning=1 if after > before else -1,
            cost_us=cost,
            part=cost / self.base_us,
            on_gpu=self._joined.is_device,
        )


def _is_large(profile: StepProfile, name: str) -> bool:
    work = profile.work.get(name)
    return work is not None and work.calls > 0 and work.own_us >= _LEAST_SHARE * profile.total_us


def _at_pace(profile: StepProfile, pace: float) -> StepProfile:
    """The profile as it would be at the mean pace of all traces."""
    return replace(
        profile,
        work={
            name: Work(one.calls, one.own_us / pace, one.whole_us / pace)
            for name, one in profile.work.items()
        },
        total_us=profile.total_us / pace,
        idle_us=profile.idle_us / pace,
        launch_us=profile.launch_us / pace,
    )
