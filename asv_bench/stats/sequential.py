"""Looking before the end without raising the total error: levels for planned looks, and Holm.

The error allowed, alpha, is spent over the looks by a function of how much of the data is there
(Lan & DeMets 1983), here alpha * fraction ** 2 (Kim & DeMets 1987). O'Brien and Fleming's function
spends less early: it would have nothing of use before 15 of 24 pairs, because no test on the signs
of n pairs can give less than 2 ** (1 - n). The levels follow by integrating the joint distribution
of the statistics at all looks (Armitage, McPherson & Rowe 1969), that of a Brownian motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import Floats, root

_GRID = 801
_FAR = 40.0
# Not scipy's: every command that compares would wait a second for it.
_erfc = np.frompyfunc(math.erfc, 1, 1)


@cache
def look_levels(
    # Pairs at each look, ascending; the last is the cap.
    looks: tuple[int, ...],
    alpha: float,  # probability that any look finds a difference where there is none
    # Of the fraction of the data and alpha: what may have been spent by then.
    spending: Callable[[float, float], float] = lambda fraction, alpha: alpha * fraction**2.0,
) -> tuple[float, ...]:
    """The two-sided level of the test at each look, so that all together err with `alpha`."""
    levels: list[float] = []
    spent = before = 0.0
    # Where Brownian paths are that crossed no bound so far, and how many of them.
    positions, mass = np.zeros(1), np.ones(1)
    for look in looks:
        now = look / looks[-1]
        bound = _bound_crossed_by(spending(now, alpha) - spent, positions, mass, now - before)
        levels.append(math.erfc(bound / math.sqrt(2 * now)))
        spent += _crossing(bound, positions, mass, now - before)
        positions, mass = _within(bound, positions, mass, now - before)
        before = now
    return tuple(levels)


def one_sided_look_levels(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The same for a one-sided test with a total error of `alpha`.

    Half of a two-sided test of 2 alpha: a path that crosses both its bounds is too rare to matter.
    """
    return tuple(level / 2 for level in look_levels(looks, 2 * alpha))


def _crossing(bound: float, positions: Floats, mass: Floats, lapse: float) -> float:
    """Probability of having crossed no bound so far and being beyond ±`bound` after a lapse."""
    # Of the two bounds either is crossed as often: the paths are symmetric.
    either = _erfc((bound - positions) / math.sqrt(2 * lapse))
    return float(np.sum(mass * either))


def _bound_crossed_by(probability: float, positions: Floats, mass: Floats, lapse: float) -> float:
    return root(
        lambda bound: probability - _crossing(bound, positions, mass, lapse), 0, _FAR, 1e-10
    )


def _within(bound: float, positions: Floats, mass: Floats, lapse: float) -> tuple[Floats, Floats]:
    """The paths that are within the bound after a lapse, on a grid whose weights are Simpson's."""
    step = math.sqrt(lapse)
    grid = np.linspace(-bound, bound, _GRID)
    moves = np.exp(-(((grid[:, None] - positions[None, :]) / step) ** 2) / 2)
    moves /= step * math.sqrt(2 * math.pi)
    simpson = np.full(_GRID, 2.0)
    simpson[1::2] = 4.0
    simpson[[0, -1]] = 1.0
    return grid, simpson * ((grid[1] - grid[0]) / 3) * (moves @ mass)


def holm(
    p_values: Floats,
    level_for: Callable[[int], float],
    hypotheses: npt.NDArray[np.int64] | int,
) -> npt.NDArray[np.bool_]:
    """Which hypotheses Holm's step-down procedure (1979) rejects.

    `p_values`, [..., tests], are NaN where a hypothesis is not tested now; whatever dimensions come
    first are separate families. `level_for` gives the level that a single test must meet where the
    total error is divided by a number. `hypotheses`, [...], are those of a family that are not
    rejected yet, at least as many as are tested.
    """
    order = np.argsort(p_values, axis=-1)
    most = int(np.max(hypotheses))
    levels = np.array([np.nan, *(level_for(count) for count in range(1, most + 1))])
    left = np.asarray(hypotheses)[..., None] - np.arange(p_values.shape[-1])
    meets = np.take_along_axis(p_values, order, axis=-1) <= levels[np.maximum(left, 0)]
    rejected = np.empty(p_values.shape, np.bool_)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(meets, axis=-1), axis=-1)
    return rejected
