"""Tests and estimates on two sides that nothing pairs, on arrays of logarithms, [..., runs].

Of three to six runs a side ranks alone cannot tell at small levels. So both must: the ranks, exact,
where they can, and else that all runs of one side lie apart from all of the other; and Welch's
test, which takes each side to scatter in its own way.
"""

from __future__ import annotations

import numpy as np

from asv_bench.stats.paired import Floats, rank_sum_p, rank_sum_tails


def unpaired_p(base: Floats, head: Floats) -> Floats:
    """The one-sided p-value, small where the head lies above the base."""
    welch = _welch_p(base, head)
    are_apart = head.min(axis=-1) > base.max(axis=-1)
    return np.where(are_apart, welch, np.maximum(welch, rank_sum_p(base, head)))


def unpaired_shift(
    base: Floats, head: Floats, confidence: float
) -> tuple[Floats, Floats, Floats, float]:
    """The shift of Hodges and Lehmann, its exact interval, and the confidence of that.

    Where so few runs cannot have the confidence, the range of all differences and what that has.
    """
    differences = np.sort((head[..., :, None] - base[..., None, :]).reshape(*head.shape[:-1], -1))
    tails = rank_sum_tails(head.shape[-1], base.shape[-1])
    excluded = int(np.count_nonzero(tails <= (1 - confidence) / 2))
    low, high = differences[..., max(excluded, 1) - 1], differences[..., -max(excluded, 1)]
    reached = confidence if excluded else 1 - 2 * float(tails[-1])
    return np.median(differences, axis=-1), low, high, reached


def _welch_p(base: Floats, head: Floats) -> Floats:
    from scipy.special import stdtr  # not at the top: every command would wait for it

    counts = np.array([base.shape[-1], head.shape[-1]])
    means = np.stack([base.mean(axis=-1), head.mean(axis=-1)], axis=-1)
    errors = np.stack([base.var(axis=-1, ddof=1), head.var(axis=-1, ddof=1)], axis=-1) / counts
    # Figures that are all alike have been rounded: they scatter by less than can be seen.
    error = np.maximum(errors.sum(axis=-1), 1e-30)
    freedom = error**2 / np.maximum((errors**2 / (counts - 1)).sum(axis=-1), 1e-60)
    shift = (means[..., 1] - means[..., 0]) / np.sqrt(error)
    return np.asarray(stdtr(np.clip(freedom, 1, counts.sum() - 2), -shift))
