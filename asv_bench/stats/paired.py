"""Tests and estimates on paired log-ratios, and on two sides that nothing pairs, on arrays.

Everything is exact and rank-based: processes have outliers, and at the small levels that matter
here, normal approximations of a dozen pairs are wrong. Arrays are of logarithms, [..., pairs]:
whatever dimensions come first are separate comparisons.

After a handful of pairs three one-sided tests can decide that the head is slower by more than 0,
where tests on the signs of n pairs cannot give less than 2 ** -n:

- *separation*: every process of the head is slower than every process of the base, by a gap at
  least as wide as the processes of either commit lie apart, and wider where pairs are few;
- *pooled ranks*: besides that, the differences are large beside differences between processes of
  one commit that this machine showed earlier;
- *rank sum*: processes of both commits come from one distribution where there is no effect, drift
  or not, since base and head take turns.

All three would err where one commit scatters many times as widely as the other, and more so where
it is skewed, which a handful of pairs cannot exclude. So up to eight pairs the gap is the wider the
fewer they are, and wider still where what they see of both differs much.

Of three to six runs a side that nothing pairs ranks alone cannot tell at small levels. So both
must: the ranks, exact, where they can, and else that all runs of one side lie apart from all of the
other; and Welch's test, which takes each side to scatter in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
POOL_SIZE = 40
"""Differences that the pool holds, the latest."""
POOL_SESSIONS = 8
"""Commands from which the pool must come to judge three or four pairs by: each of them may have met
the machine in one of its states alone."""
POOL_HALF_WIDTH = 2.02
"""Of an interval of 95 % of one difference, in standard deviations of the pool: Student's t."""
CAUTION = 1.5
"""Differences of the pool are taken for so many times as wide, since conditions change."""
ALIKE = 2.0
"""How many times as widely as the other a commit may scatter, to be taken for alike."""
_TRIMMED = 8
"""Processes from which on the outermost on either side do not count for how widely they scatter."""
_LEFT_OUT = 0.25
"""Of windows, at either end of their ratios."""


def location_p(log_ratios: Sequence[float] | Floats, *, is_two_sided: bool) -> Floats:
    """The exact p-value of the better of two tests that the centre is 0: Wilcoxon's and the sign's.

    Wilcoxon's test sees more in noise that is alike in all pairs, but three outliers on the wrong
    side, which get its highest ranks, blind it at small levels; the sign test does not mind them.
    The smaller of both p-values is referred to its own distribution over all signs. One-sided it is
    small where the centre is positive.

    Where the centre is 0 each ratio is as likely to be positive as negative.
    Exact with ties; zeros are ranked and count for neither side (Pratt 1959).
    """
    values = np.asarray(log_ratios, np.float64)
    sizes = np.abs(values)
    # Doubled, midranks are whole numbers: how many are smaller, and how many are no larger.
    ranks = 1 + sum(
        below(sizes[..., None, :], sizes[..., :, None]).sum(axis=-1)
        for below in (np.less, np.less_equal)
    )
    ranks[values == 0] = 0
    is_up = values > 0
    sums, numbers = (ranks * is_up).sum(axis=-1), is_up.sum(axis=-1)
    # Without ties all comparisons have the same ranks, and one table.
    kinds, kind_of = np.unique(
        np.sort(ranks, axis=-1).reshape(-1, values.shape[-1]), axis=0, return_inverse=True
    )
    kind_of = kind_of.reshape(sums.shape)
    p_values = np.empty(sums.shape)
    for number, kind in enumerate(kinds):
        table = _smaller_p(tuple(kind[kind > 0].tolist()), is_two_sided)
        those = kind_of == number
        p_values[those] = table[sums[those], numbers[those]]
    return p_values


@cache
def ways_to_sum(ranks: tuple[int, ...]) -> Floats:
    """In how many ways some of the ranks add up to a sum, [sum, how many are picked]."""
    ways = np.zeros((sum(ranks) + 1, len(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[rank:, 1:] += ways[:-rank, :-1]
    return ways


@cache
def _smaller_p(doubled_ranks: tuple[int, ...], is_two_sided: bool) -> Floats:
    """P-values of `location_p`, [sum of the positive ranks, number of positive signs]."""
    chances = ways_to_sum(doubled_ranks) / 2.0 ** len(doubled_ranks)
    of_ranks, of_signs = (_tails(chances.sum(axis=other), is_two_sided) for other in (1, 0))
    smaller = np.minimum(of_ranks[:, None], of_signs[None, :])
    order = np.argsort(smaller, axis=None)
    ascending = smaller.ravel()[order]
    cumulated = np.cumsum(chances.ravel()[order])
    # Up to the last of equal values, which rounding may have parted.
    last = np.searchsorted(ascending, ascending * (1 + 1e-9), side="right") - 1
    p_values = np.empty(smaller.size)
    p_values[order] = np.minimum(1.0, cumulated[last])
    return p_values.reshape(smaller.shape)


def _tails(chances: Floats, is_two_sided: bool) -> Floats:
    """P-values of a statistic, by value, that is large where the centre is positive."""
    upper = np.cumsum(chances[::-1])[::-1]
    return 2 * np.minimum(upper, np.cumsum(chances)) if is_two_sided else upper


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p-value that so many pairs can give: all of one sign."""
    return min(1.0, 2.0 ** (1 - pairs))


def hodges_lehmann(log_ratios: Sequence[float] | Floats) -> Floats:
    """The shift that Wilcoxon's test would find least significant: median of Walsh averages."""
    return np.asarray(np.median(_walsh_averages(log_ratios), axis=-1))


def shift_interval(
    log_ratios: Sequence[float] | Floats, confidence: float
) -> tuple[Floats, Floats, float]:
    """The shifts that Wilcoxon's two-sided test at 1 - `confidence` does not reject.

    Bounds are Walsh averages counted from both ends (Hollander, Wolfe & Chicken, *Nonparametric
    Statistical Methods*, 3.3), so that the coverage is at least `confidence`. Gives low, high and
    the confidence; where so few pairs cannot have it, all of their range and what that has.
    """
    averages = _walsh_averages(log_ratios)
    pairs = np.shape(log_ratios)[-1]
    excluded = _excluded(pairs, confidence)
    if excluded == 0:
        return averages[..., 0], averages[..., -1], 1 - smallest_p(pairs)
    return averages[..., excluded - 1], averages[..., -excluded], confidence


def _walsh_averages(values: Sequence[float] | Floats) -> Floats:
    """The means of all pairs of values, each with itself too, ascending."""
    array = np.asarray(values, np.float64)
    rows, columns = np.triu_indices(array.shape[-1])
    return np.sort((array[..., rows] + array[..., columns]) / 2, axis=-1)


@cache
def _excluded(pairs: int, confidence: float) -> int:
    """How many Walsh averages, counted from either end, the interval's bound is.

    As many sums of ranks, of which a fair coin picks each, are together no more probable than
    either side may err.
    """
    ways = np.ones(1)
    for rank in range(1, pairs + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    of_half = np.cumsum(ways / 2.0**pairs)[: (ways.size - 1) // 2]
    return int(np.searchsorted(of_half, (1 - confidence) / 2, side="right"))


def are_separate(base: Floats, head: Floats) -> Bools:
    """Whether the head's processes lie above the base's by a gap wide beside the range of either.

    The gap is at least as wide as the wider range with six pairs, and with each pair more half as
    wide. Where the commits do not scatter alike, and with three pairs, it is twice that, and never
    narrower than the range.
    """
    pairs = base.shape[-1]
    gap = head.min(axis=-1) - base.max(axis=-1)
    wider = np.maximum(np.ptp(base, axis=-1), np.ptp(head, axis=-1))
    unlike = max(1.0, 2.0 ** (7 - pairs))
    alike = 2.0 ** (6 - pairs) if pairs > 3 else unlike
    needed = np.where(_scatter_alike(base, head), alike, unlike)
    return np.asarray((gap > 0) & (gap >= needed * wider))


def separation_p(base: Floats, head: Floats) -> Floats:
    """4 ** -pairs where the commits are separate, less than the rank-sum test can say; else 1."""
    return np.where(are_separate(base, head), 4.0 ** -base.shape[-1], 1.0)


def guarded_rank_sum_p(base: Floats, head: Floats) -> Floats:
    """`rank_sum_p` where both commits are separate, or where more than eight pairs scatter alike.

    Else 1. Of one that is much noisier, all processes lie on one side of the other's as often as a
    coin falls on one side; the test takes that for rarer.
    """
    trusted = are_separate(base, head)
    if base.shape[-1] > _TRIMMED:
        trusted |= _scatter_alike(base, head)
    return np.where(trusted, rank_sum_p(base, head), 1.0)


def rank_sum_p(base: Floats, head: Floats) -> Floats:
    """The exact p-value of Wilcoxon's, Mann's and Whitney's test; ties count for the base."""
    wins = (head[..., :, None] > base[..., None, :]).sum(axis=(-1, -2))
    return np.asarray(rank_sum_tails(head.shape[-1], base.shape[-1])[wins])


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
    ranks = 1 + among_pool + (sizes[..., :, None] > sizes[..., None, :]).sum(axis=-1)
    total = (np.sign(differences).astype(np.int64) * ranks).sum(axis=-1)
    tails = pooled_tails(base.shape[-1], pool.shape[-1])
    return np.where(are_separate(base, head), tails[np.clip(total, 0, tails.size - 1)], 1.0)


def fits_pool(own: Floats, pool: Floats) -> Bools:
    """Whether differences that this run showed within a commit are no wider than the pool's."""
    own, pool = np.abs(own), np.abs(pool)
    is_in_reach = own.max(axis=-1) <= 2 * pool.max(axis=-1)
    return np.asarray(is_in_reach & (rank_sum_p(pool, own) >= 0.01))


def _scatter_alike(base: Floats, head: Floats) -> Bools:
    """Whether neither commit's processes lie more than `ALIKE` times as wide as the other's."""

    def width(values: Floats) -> Floats:
        trimmed = 1 if values.shape[-1] >= _TRIMMED else 0
        ordered = np.sort(values, axis=-1)
        return np.asarray(ordered[..., -1 - trimmed] - ordered[..., trimmed])

    first, second = width(base), width(head)
    return np.asarray((first <= ALIKE * second) & (second <= ALIKE * first))


@cache
def rank_sum_tails(winners: int, losers: int) -> Floats:
    """P(U >= u), u = 0, 1, ...: how often one of `winners` values is above one of `losers`."""
    least = winners * (winners + 1) // 2
    by_sum = ways_to_sum(tuple(range(1, winners + losers + 1)))[:, winners]
    counts = by_sum[least : least + winners * losers + 1]
    return np.asarray(np.cumsum(counts[::-1])[::-1] / counts.sum())


@cache
def pooled_tails(pairs: int, size: int) -> Floats:
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


def last_digit(base: Floats, head: Floats, printed: float) -> Floats:
    """The step of the last digit of figures, whose logarithms are [..., pairs], as one of these.

    Where some of a commit's figures are the same it is the least gap between those that are not, as
    a clock that ticks slowly leaves them. `printed` is what the digits say, 0 of exact figures.
    """
    gaps = np.concatenate([np.diff(np.sort(side, axis=-1), axis=-1) for side in (base, head)], -1)
    is_same = gaps == 0
    is_coarse = (printed > 0) & is_same.any(axis=-1) & ~is_same.all(axis=-1)
    least = np.where(is_same, np.inf, gaps).min(axis=-1, initial=np.inf)
    return np.where(is_coarse, least, math.log1p(printed))


def printed_digit(figures: Sequence[float]) -> float:
    """The step of the last digit that any of these figures has, as a fraction of the first."""
    digits = (Decimal(repr(one)).normalize().as_tuple().exponent for one in figures)
    return float(10.0 ** min(0, *map(int, digits)) / figures[0])


def robust_sigma(log_ratios: Sequence[float] | Floats) -> float:
    """The spread of single pairs as a standard deviation that outliers do not inflate."""
    values = np.asarray(log_ratios, np.float64)
    return NORMAL_MAD * float(np.median(np.abs(values - np.median(values))))


def undisturbed(base: Sequence[float], head: Sequence[float]) -> tuple[float, float]:
    """Geometric means of the windows of both, of those whose ratios are in the middle half.

    A window of the base is compared with the window of the head beside it, which met the same load
    of the machine: what disturbed one of the two shows in their ratio. Figures are above 0, at
    least one of each; windows that only one of them has are left out.
    """
    logs = np.log(list(zip(base, head, strict=False)))
    logs = logs[np.argsort(logs[:, 1] - logs[:, 0])]
    left_out = int(len(logs) * _LEFT_OUT)
    of_base, of_head = np.exp(logs[left_out : len(logs) - left_out].mean(axis=0))
    return float(of_base), float(of_head)


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio, 1 for all of it, and its interval; infinite where a bound was not found."""

    value: float
    interval: tuple[float, float]
    confidence: float


def share_in_rounds(
    whole: Mapping[float, float], part: Mapping[float, float], confidence: float
) -> Share | None:
    """The ratio of two shifts, with its interval by inverting Wilcoxon's test; None without any.

    A ratio is in the interval if `ratio * whole - part` may well be centred at 0 (Fieller 1954,
    with ranks in place of means): the two need not be independent, nor the whole known exactly.
    Both are differences of logarithms, by when the life that both rest on began.
    """
    rounds = sorted(whole.keys() & part.keys())
    if not rounds:
        return None
    of_whole, of_part = (np.array([side[one] for one in rounds]) for side in (whole, part))

    def bound(ratio: float, end: int) -> float:
        return float(shift_interval(ratio * of_whole - of_part, confidence)[end])

    value = float(hodges_lehmann(of_part) / hodges_lehmann(of_whole))
    # Shifts rise with the ratio, so the smallest ratio is where even the upper bound is 0.
    low = _root(lambda ratio: bound(ratio, 1), value, -1.0)
    high = _root(lambda ratio: bound(ratio, 0), value, 1.0)
    reached = shift_interval(np.zeros(len(rounds)), confidence)[2]
    return Share(value, (min(low, value), max(high, value)), reached)


def _root(function: Callable[[float], float], start: float, direction: float) -> float:
    """Where a function that rises is 0, looked for from a start; infinite if that is too far."""
    for step in (0.0, *(2.0**power for power in range(-6, 7))):
        end = start + direction * step
        if direction * function(end) >= 0:
            return root(function, min(start, end), max(start, end), 1e-6) if step else start
    return math.copysign(math.inf, direction)


def root(function: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Where a function that rises is 0 between two points, found by halving what lies between."""
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
