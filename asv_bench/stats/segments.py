"""Segments of equal level in a series whose values were measured in sessions; pure functions.

A value is the level of its segment, plus what its session adds to all of its values, plus its own
error. Errors have the standard deviation 1, what sessions add has `session_sd`: 0 where all values
are of one session or sessions do not differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]
"""The session of each value, as a number from 0."""

PENALTY = 5.0
"""What another segment costs, times the logarithm of the number of values."""


def segment_ends(
    values: Floats, sessions: Labels, session_sd: float, least: int, penalty: float = PENALTY
) -> list[int]:
    """Where each segment ends, the last one at the end of the series.

    The squared errors that no segmentation lowers further, at a penalty of `penalty` ln n for each
    segment; found by dynamic programming over all places (Jackson et al. 2005). What a session adds
    is drawn anew in each segment, so costs of segments add up. A step within a session thus counts
    in full; one between two sessions counts only as far as sessions do not differ as much.

    Parameters
    ----------
    values, sessions
        [n], in units of their errors.
    session_sd
        In the same units.
    least
        The fewest values of a segment. Only with 1 can the newest value be seen to differ.
    penalty
        For values whose errors are independent; more where neighbours share theirs.
    """
    count = len(values)
    costs = _Costs(values - np.mean(values), sessions, session_sd**2)
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    begin = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        of_last = costs.up_to(end)
        if end >= least:
            totals = best[: end - least + 1] + of_last[: end - least + 1]
            begin[end] = int(np.argmin(totals))
            best[end] = totals[begin[end]] + penalty * math.log(count)
    ends = [count]
    while begin[ends[-1]] > 0:
        ends.append(int(begin[ends[-1]]))
    return ends[::-1]


class _Costs:
    """The costs of segments by where they begin, for one end after the other.

    Around the level of its segment, the mean of m values of a session has the variance
    `session_variance` + 1 / m.
    """

    def __init__(self, values: Floats, sessions: Labels, session_variance: float) -> None:
        size = len(values) + 1
        self._values, self._sessions = values, sessions
        self._variance = session_variance
        # Up to each place: how many values there are of a session, their sum and that of squares.
        kinds = range(int(sessions.max()) + 1)
        powers = (np.ones_like(values), values, values**2)
        self._sums = np.array(
            [
                [np.concatenate([[0.0], np.cumsum(power * (sessions == one))]) for power in powers]
                for one in kinds
            ]
        )
        self._errors, self._weights = np.zeros(size), np.zeros(size)
        self._weighted = np.zeros(size)

    def up_to(self, end: int) -> Floats:
        """[end] costs of the segments that end at `end`; ends are asked for from 1 on, in order."""
        session = self._sessions[end - 1]
        sums = self._sums[session]
        self._add(sums[:, end - 1 : end] - sums[:, :end], -1.0)
        self._add(sums[:, end : end + 1] - sums[:, :end], 1.0)
        return self._errors[:end] - self._weighted[:end] ** 2 / self._weights[:end]

    def _add(self, sums: Floats, sign: float) -> None:
        """Add, or take away, what a session contributes to segments by their begin."""
        number, total, squares = sums
        mean = np.divide(total, number, out=np.zeros_like(total), where=number > 0)
        weight = number / (self._variance * number + 1.0)
        place = slice(len(number))
        self._errors[place] += sign * (squares - number * mean**2 + weight * mean**2)
        self._weights[place] += sign * weight
        self._weighted[place] += sign * weight * mean


@dataclass(frozen=True, slots=True)
class Step:
    """The step between two segments.

    Attributes
    ----------
    height
        After minus before.
    sd
        By how much that may be off, as a standard deviation.
    values
        The values of both segments without what their sessions are thought to have added.
    """

    height: float
    sd: float
    values: Floats


def step_between(values: Floats, sessions: Labels, session_sd: float, before: int) -> Step:
    """The step after the first `before` of the values, by generalized least squares.

    What a session adds is the same on both sides of the step.
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
    return Step(float(levels[1] - levels[0]), math.sqrt(variance), values - same @ errors)
