"""How an allowed error is divided: among families of hypotheses, and among looks before the end.

Looking does not raise the total error. What is allowed, alpha, is spent over the looks by a
function of how much of the data is there (Lan & DeMets 1983), here alpha * fraction ** 2 (Kim &
DeMets 1987). O'Brien and Fleming's function spends less early: it would have nothing of use before
15 of 24 pairs, because no test on the signs of n pairs can give less than 2 ** (1 - n). The levels
follow by integrating the joint distribution of the statistics at all looks (Armitage, McPherson &
Rowe 1969), that of a Brownian motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from asv_bench.stats.paired import Bools, Floats, root

LEAD = 0.98
"""Of a family's level, what the hypotheses have whose turn it is, while others are to come: as much
as they need to be rejected at the looks at which a single one could be."""
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
        allowed = spending(now, alpha) - spent
        bound, crossed, positions, mass = _pass(allowed, positions, mass, now - before)
        levels.append(math.erfc(bound / math.sqrt(2 * now)))
        spent, before = spent + crossed, now
    return tuple(levels)


def _pass(
    allowed: float, positions: Floats, mass: Floats, lapse: float
) -> tuple[float, float, Floats, Floats]:
    """The bound, either side, that so many paths have crossed after a lapse, and how many did.

    Then the paths that are within it, on a grid whose weights are Simpson's.
    """

    def crossing(bound: float) -> float:
        # Of the two bounds either is crossed as often: the paths are symmetric.
        return float(np.sum(mass * _erfc((bound - positions) / math.sqrt(2 * lapse))))

    bound, step = root(lambda one: allowed - crossing(one), 0, _FAR, 1e-10), math.sqrt(lapse)
    grid = np.linspace(-bound, bound, _GRID)
    moves = np.exp(-(((grid[:, None] - positions[None, :]) / step) ** 2) / 2)
    moves /= step * math.sqrt(2 * math.pi)
    simpson = np.full(_GRID, 2.0)
    simpson[1::2] = 4.0
    simpson[[0, -1]] = 1.0
    within = simpson * ((grid[1] - grid[0]) / 3) * (moves @ mass)
    return bound, crossing(bound), grid, within


def rejected_in_turns(
    p_values: Floats,
    level_for: Callable[[float], float],
    turns: Sequence[int],
    rejected: Bools,
    closed: Bools,
    counted: Bools,
) -> Bools:
    """Which hypotheses are rejected by now, of families whose members have an order.

    Arrays are [..., families, members]. `p_values` are NaN where a hypothesis is not tested now;
    whatever dimensions come first are separate. `level_for` gives the level that a single test must
    meet where the total error is divided by a number. `turns` are those of the members, from 0 on.
    `rejected` were so before; `closed` are tested no more, for whatever reason; `counted` exist.

    The error is divided among the families that have a hypothesis left, as in Holm's step-down
    procedure (1979), which this is where families have one member. In a family the turn that it is
    has `LEAD` of the level, and those to come share the rest; it is over when all of it are
    rejected or closed. Where the turn before was rejected, at most one hypothesis of the next may
    be true, so that its members need not share; else they do, by Holm's procedure.
    """
    rejected = rejected.copy()
    while True:
        families = np.maximum(1, (counted & ~rejected).any(axis=-1).sum(axis=-1))
        shares = families[..., None, None] * _divisors(turns, rejected, closed)
        kinds, kind_of = np.unique(shares, return_inverse=True)
        levels = np.array([level_for(float(share)) for share in kinds])
        now = rejected | (p_values <= levels[kind_of].reshape(shares.shape))
        if (now == rejected).all():
            return rejected
        rejected = now


def _divisors(turns: Sequence[int], rejected: Bools, closed: Bools) -> Floats:
    """By how much the level of a family is divided for each of its members, see above."""
    of, last = np.asarray(turns), max(turns)
    divisors = np.full(rejected.shape, np.count_nonzero(of) / (1.0 - LEAD))
    are_rejected: Bools = np.zeros(rejected.shape[:-1], np.bool_)
    is_reached = ~are_rejected
    for turn in range(last + 1):
        left = np.where(are_rejected, 1, (~rejected[..., of == turn]).sum(axis=-1))
        lead = np.maximum(1, left) / (1.0 if turn == last else LEAD)
        divisors = np.where(is_reached[..., None] & (of == turn), lead[..., None], divisors)
        are_rejected = np.asarray(rejected[..., of == turn].all(axis=-1))
        is_reached &= (rejected | closed)[..., of == turn].all(axis=-1)
    return divisors
