"""Histories: segments of equal level in a series, and what devices read more than others.

The values of a series were measured in sessions. A value is the level of its segment, plus what its
session adds to all of its values, plus its own error. Errors have the standard deviation 1, what
sessions add has `session_sd`: 0 where all values are of one session or sessions do not differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import Floats

Labels: TypeAlias = npt.NDArray[np.int64]
"""The session of each value, as a number from 0."""

PENALTY = 5.0
"""What another segment costs, times the logarithm of the number of values."""
FEWEST = 4
"""So many values are the fewest of which that number is taken."""
_ROBUST_PENALTY = 2.0
_TAIL = 3.0
_LEAST_HEIGHT = 4.5
_LINE_HEIGHT = 1.4
"""How much higher a step must be where a line fits as well."""
_FREEDOM = 8
"""So many errors, without those that levels were fitted to, are the fewest that tell of drift."""
_MOST_LEVELS = 400
_SWEEPS = 100
_SETTLED = 1e-9

Readings = Mapping[str, Mapping[str, Sequence[float]]]
"""By device and by what was measured: positive figures."""


def segment_ends(
    values: Floats, sessions: Labels, session_sd: float, least: int, penalty: float = PENALTY
) -> list[int]:
    """Where each segment ends, the last one at the end of the series.

    The squared errors that no segmentation lowers further, at a penalty of `penalty` ln n for each
    segment; found by dynamic programming over all places (Jackson et al. 2005). What a session adds
    is drawn anew in each segment, so costs of segments add up: a step between two sessions counts
    only as far as sessions do not differ as much.

    `values`, [n], and `session_sd` are in units of the errors. A segment has at least `least`
    values: only with 1 can the newest value be seen to differ. `penalty` is for values whose errors
    are independent; more where neighbours share theirs.
    """
    count = len(values)
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    begin = np.zeros(count + 1, np.int64)
    costs = _costs_by_end(values - np.mean(values), sessions, session_sd**2)
    for end, of_last in enumerate(costs, 1):
        if end >= least:
            totals = best[: end - least + 1] + of_last[: end - least + 1]
            begin[end] = int(np.argmin(totals))
            best[end] = totals[begin[end]] + penalty * math.log(max(count, FEWEST))
    ends = [count]
    while begin[ends[-1]] > 0:
        ends.append(int(begin[ends[-1]]))
    return ends[::-1]


def robust_segment_ends(values: Floats) -> list[int]:
    """The same for values of one session, of which single ones may be far off.

    Errors are of a Student t distribution, whose heavy tails let a disturbed process pass. Each
    segment has a level out of the values; the best way through them is found by dynamic programming
    (Storath & Weinmann 2014). Where processes have two modes, the level of many values near one of
    them jumps by chance: a step must be one of the means, too (`lasting_ends`). Values are in units
    of their errors.
    """
    count = len(values)
    levels: Floats = np.unique(values)
    if len(levels) > _MOST_LEVELS:
        levels = np.asarray(np.quantile(values, np.linspace(0.0, 1.0, _MOST_LEVELS)), np.float64)
    costs = robust_costs(values[:, None] - levels)
    penalty = _ROBUST_PENALTY * math.log(max(count, FEWEST))
    stays = np.arange(len(levels))
    came_from = np.empty((count, len(levels)), np.int64)
    best = costs[0]
    for place in range(1, count):
        lowest = int(np.argmin(best))
        came_from[place] = np.where(best > best[lowest] + penalty, lowest, stays)
        best = np.minimum(best, best[lowest] + penalty) + costs[place]
    level, ends = int(np.argmin(best)), [count]
    for place in range(count - 1, 0, -1):
        before = int(came_from[place, level])
        if before != level:
            ends.append(place)
        level = before
    return ends[::-1]


def robust_costs(errors: Floats) -> Floats:
    """What errors cost under a Student t distribution, each."""
    costs: Floats = np.log1p(errors**2 / _TAIL) * (_TAIL + 1.0) / 2.0
    return costs


def lasting_ends(values: Floats, ends: list[int], least: float = _LEAST_HEIGHT) -> list[int]:
    """The ends without those of which the means on both sides do not differ beyond doubt.

    The difference must be `least` times its standard deviation. Neighbours may have errors in
    common, as on a machine that drifts: the deviation is of means of such errors. Where a line
    through both sides fits as well as a step, that may be a drift, too, and must be clearer.
    """
    while len(ends) > 1:
        segments = np.split(values, ends[:-1])
        clipped = [np.clip(one, np.median(one) - 3.0, np.median(one) + 3.0) for one in segments]
        heights = [_height(before, after) for before, after in pairwise(clipped)]
        lowest = int(np.argmin(heights))
        errors = np.concatenate([one - np.mean(one) for one in clipped])
        if heights[lowest] >= least * _inflation(errors, len(ends)):
            break
        ends = ends[:lowest] + ends[lowest + 1 :]
    return ends


def _height(before: Floats, after: Floats) -> float:
    """By how many of its standard deviations the mean differs, if errors are independent."""
    both = np.concatenate([before, after])
    height = abs(np.mean(after) - np.mean(before)) / math.sqrt(1 / len(before) + 1 / len(after))
    places = np.arange(len(both)) - (len(both) - 1) / 2.0
    is_line = len(both) > 2 and (places @ both) ** 2 / (places @ places) >= height**2
    return float(height / _LINE_HEIGHT if is_line else height)


def _inflation(errors: Floats, levels: int) -> float:
    """How many times as far off means of such errors are as those of independent ones.

    Covariances of neighbours are summed with weights that fall with their distance, up to the cube
    root of the number of values (Newey & West 1987); `levels` were fitted before.
    """
    count = len(errors)
    if count - levels < _FREEDOM:
        return 1.0
    furthest = round(count ** (1.0 / 3.0))
    weights = 2.0 - 2.0 * np.arange(1, furthest + 1) / (furthest + 1)
    shared = [errors[lag:] @ errors[:-lag] for lag in range(1, furthest + 1)]
    return math.sqrt(max(1.0, (errors @ errors + weights @ shared) / (count - levels)))


def _costs_by_end(values: Floats, sessions: Labels, session_variance: float) -> Iterator[Floats]:
    """[end] costs of the segments that end there, by where they begin; for one end after the other.

    Around the level of its segment, the mean of m values of a session has the variance
    `session_variance` + 1 / m.
    """
    # Up to each place: how many values there are of a session, their sum and that of squares.
    powers = (np.ones_like(values), values, values**2)
    sums = np.array(
        [
            [np.concatenate([[0.0], np.cumsum(power * (sessions == one))]) for power in powers]
            for one in range(int(sessions.max()) + 1)
        ]
    )
    errors, weights, weighted = np.zeros((3, len(values)))
    for end, session in enumerate(sessions, 1):
        # What the session contributed to segments by their begin is taken away, and added anew.
        for until, sign in ((end - 1, -1.0), (end, 1.0)):
            number, total, squares = sums[session][:, until : until + 1] - sums[session][:, :end]
            mean = np.divide(total, number, out=np.zeros_like(total), where=number > 0)
            weight = number / (session_variance * number + 1.0)
            errors[:end] += sign * (squares - number * mean**2 + weight * mean**2)
            weights[:end] += sign * weight
            weighted[:end] += sign * weight * mean
        yield errors[:end] - weighted[:end] ** 2 / weights[:end]


def step_between(
    values: Floats, sessions: Labels, session_sd: float, before: int
) -> tuple[float, float, Floats]:
    """The step after the first `before` of the values, by generalized least squares.

    What a session adds is the same on both sides. Gives the height, its standard deviation, and the
    values without what their sessions are thought to have added.
    """
    same = np.equal.outer(sessions, sessions) * session_sd**2
    of_sides = np.zeros((len(values), 2))
    of_sides[:before, 0] = of_sides[before:, 1] = 1.0
    covariance = same + np.eye(len(values))
    solved: npt.NDArray[Any] = np.linalg.solve(covariance, np.column_stack([of_sides, values]))
    spread = np.linalg.inv(of_sides.T @ solved[:, :2])
    levels = spread @ (of_sides.T @ solved[:, 2])
    errors = solved[:, 2] - solved[:, :2] @ levels
    variance = spread[0, 0] + spread[1, 1] - 2 * spread[0, 1]
    return float(levels[1] - levels[0]), math.sqrt(variance), values - same @ errors


def device_factors(readings: Readings) -> dict[str, float]:
    """What each device reads as a multiple of what all read in the geometric mean.

    Every figure is taken as the product of a factor of its device and of what was measured. Both
    are fitted by turns as medians of what the other leaves of the logarithms: median polish (Tukey,
    Exploratory Data Analysis, 1977, chapter 11). It has the devices of the largest group that have
    measured something in common, if only by way of others. Empty where no two have.
    """
    devices = max((_linked(one, readings) for one in readings), key=len, default=set())
    if len(devices) < 2:
        return {}
    readings = {device: readings[device] for device in readings if device in devices}
    rows = [
        (device, subject, math.log(value))
        for device, of_device in readings.items()
        for subject, values in of_device.items()
        for value in values
    ]
    of_device = dict.fromkeys(readings, 0.0)
    for _ in range(_SWEEPS):
        of_subject = _medians((subject, log - of_device[device]) for device, subject, log in rows)
        left = _medians((device, log - of_subject[subject]) for device, subject, log in rows)
        mean = statistics.fmean(left.values())
        moved = max(abs(left[device] - mean - of_device[device]) for device in left)
        of_device = {device: log - mean for device, log in left.items()}
        if moved < _SETTLED:
            break
    return {device: math.exp(log) for device, log in of_device.items()}


def _medians(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for name, value in rows:
        by_name.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in by_name.items()}


def _linked(device: str, readings: Readings) -> set[str]:
    """It and all that have measured something in common with it, if only by way of others."""
    linked, subjects = {device}, {*readings[device]}
    while new := {one for one in readings.keys() - linked if subjects & readings[one].keys()}:
        linked |= new
        subjects.update(*(readings[one] for one in new))
    return linked
