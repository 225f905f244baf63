"""Tests that can decide after a handful of pairs, one-sided: is the head slower by more than 0?

Tests on the signs of pairs cannot give less than 2 ** -n. These three use more than the signs:

- *separation*: every process of the head is slower than every process of the base, by a gap at
  least as wide as the processes of either commit lie apart, and wider where pairs are few;
- *pooled ranks*: besides that, the differences are large beside differences between processes of
  one commit that this machine showed earlier;
- *rank sum*: processes of both commits come from one distribution where there is no effect, drift
  or not, since base and head take turns.

All three would err where one commit scatters many times as widely as the other, which a handful of
pairs cannot exclude: they ask for a wider gap where what they see of both differs much.

Arrays `base` and `head` are of logarithms of times, [..., pairs]: whatever dimensions come first
are separate comparisons.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import Floats, ways_to_sum

POOL_SIZE = 40
"""Differences that the pool holds, the latest."""
CAUTION = 1.5
"""Differences of the pool are taken for so many times as wide, since conditions change."""
ALIKE = 2.5
"""How many times as widely as the other a commit may scatter, to be taken for alike."""
_TRIMMED = 8
"""Processes from which on the outermost on either side do not count for how widely they scatter."""


def are_separate(base: Floats, head: Floats) -> npt.NDArray[np.bool_]:
    """Whether the head's processes lie above the base's by a gap wide beside the range of either.

    The gap is at least as wide as the wider range; with five pairs 1.5 times as wide, with four
    twice, with fewer 16 times. Where the commits do not scatter alike, it is 2 times as wide with
    six pairs, 4 times with five and 8 times with four.
    """
    pairs = base.shape[-1]
    gap = head.min(axis=-1) - base.max(axis=-1)
    wider = np.maximum(np.ptp(base, axis=-1), np.ptp(head, axis=-1))
    alike = max(1.0, 4.0 - pairs / 2) if pairs > 3 else 16.0
    needed = np.where(_scatter_alike(base, head), alike, max(1.0, 2.0 ** (7 - pairs)))
    return np.asarray((gap > 0) & (gap >= needed * wider))


def separation_p(base: Floats, head: Floats) -> Floats:
    """4 ** -pairs where the commits are separate, the least that the rank-sum test can say; else
    what it says."""
    apart = 4.0 ** -base.shape[-1]
    return np.where(are_separate(base, head), apart, guarded_rank_sum_p(base, head))


def guarded_rank_sum_p(base: Floats, head: Floats) -> Floats:
    """`rank_sum_p` where both commits scatter alike or are separate, else 1.

    Of one that is much noisier, all processes lie on one side of the other's as often as a coin
    falls on one side; the test takes that for rarer.
    """
    trusted = _scatter_alike(base, head) | are_separate(base, head)
    return np.where(trusted, rank_sum_p(base, head), 1.0)


def rank_sum_p(base: Floats, head: Floats) -> Floats:
    """The exact p-value of Wilcoxon's, Mann's and Whitney's test; ties count for the base."""
    wins = (head[..., :, None] > base[..., None, :]).sum(axis=(-1, -2))
    return np.asarray(_rank_sum_tails(head.shape[-1], base.shape[-1])[wins])


def pooled_p(base: Floats, head: Floats, pool: Floats) -> Floats:
    """The exact p-value of the signed ranks that the pairs have among themselves and the pool.

    `pool`, [..., size], has differences between logarithms of two processes of one commit, next to
    each other in time. Where there is no effect, every choice of ranks and signs for the pairs is
    as likely. 1 where the commits are not separate.
    """
    differences = head - base
    sizes = np.abs(differences)
    # From below, ties with the pool in its favour.
    among_pool = (sizes[..., :, None] > CAUTION * np.abs(pool)[..., None, :]).sum(axis=-1)
    among_pairs = (sizes[..., :, None] > sizes[..., None, :]).sum(axis=-1)
    ranks = 1 + among_pool + among_pairs
    total = (np.sign(differences).astype(np.int64) * ranks).sum(axis=-1)
    tails = _pooled_tails(base.shape[-1], pool.shape[-1])
    p = tails[np.clip(total, 0, tails.size - 1)]
    return np.where(are_separate(base, head), p, 1.0)


def least_rank_sum_p(pairs: int) -> float:
    """The smallest p-value that `rank_sum_p` can give."""
    return float(_rank_sum_tails(pairs, pairs)[-1])


def least_pooled_p(pairs: int, size: int) -> float:
    """The smallest p-value that `pooled_p` can give with a pool of so many differences."""
    return float(_pooled_tails(pairs, size)[-1])


def fits_pool(own: Floats, pool: Floats) -> npt.NDArray[np.bool_]:
    """Whether differences that this run showed within a commit are no wider than the pool's."""
    own, pool = np.abs(own), np.abs(pool)
    is_in_reach = own.max(axis=-1) <= 2 * pool.max(axis=-1)
    return np.asarray(is_in_reach & (rank_sum_p(pool, own) >= 0.01))


def _scatter_alike(base: Floats, head: Floats) -> npt.NDArray[np.bool_]:
    """Whether neither commit's processes lie more than `ALIKE` times as wide as the other's."""

    def width(values: Floats) -> Floats:
        trimmed = 1 if values.shape[-1] >= _TRIMMED else 0
        ordered = np.sort(values, axis=-1)
        return np.asarray(ordered[..., -1 - trimmed] - ordered[..., trimmed])

    first, second = width(base), width(head)
    return np.asarray((first <= ALIKE * second) & (second <= ALIKE * first))


@cache
def _rank_sum_tails(winners: int, losers: int) -> Floats:
    """P(U >= u), u = 0, 1, ...: how often one of `winners` values is above one of `losers`."""
    least = winners * (winners + 1) // 2
    by_sum = ways_to_sum(tuple(range(1, winners + losers + 1)))[:, winners]
    counts = by_sum[least : least + winners * losers + 1]
    return np.asarray(np.cumsum(counts[::-1])[::-1] / counts.sum())


@cache
def _pooled_tails(pairs: int, size: int) -> Floats:
    """P(W >= w), w = 0, 1, ...: W sums the signed ranks of `pairs` out of `pairs + size`."""
    most = sum(range(size + 1, size + pairs + 1))
    ways = np.zeros((pairs + 1, 2 * most + 1))
    ways[0, most] = 1
    for rank in range(1, size + pairs + 1):
        for picked in range(min(pairs, rank), 0, -1):
            before = ways[picked - 1]
            ways[picked, rank:] += before[:-rank]
            ways[picked, :-rank] += before[rank:]
    counts = ways[pairs]
    return np.asarray((np.cumsum(counts[::-1])[::-1] / counts.sum())[most:])
