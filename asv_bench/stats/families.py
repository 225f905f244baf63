"""Which hypotheses of several families are rejected, where a family's members have an order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asv_bench.stats.paired import Bools, Floats

LEAD = 0.98
"""Of a family's level, what the hypotheses have whose turn it is, while others are to come: as much
as they need to be rejected at the looks at which a single one could be."""


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
