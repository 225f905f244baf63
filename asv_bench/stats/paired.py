"""Tests and estimates on paired log-ratios; pure functions on arrays.

Everything is exact and rank-based: processes have outliers, and at the small levels that matter
here, normal approximations of a dozen pairs are wrong.

Arrays are of logarithms, [..., pairs]: whatever dimensions come first are separate comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Alternative: TypeAlias = Literal["two-sided", "greater", "less"]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_LEFT_OUT = 0.25
"""Of windows, at either end of their ratios."""


def location_p(log_ratios: Sequence[float] | Floats, alternative: Alternative) -> Floats:
    """The exact p-value of the better of two tests that the centre is 0: Wilcoxon's and the sign's.

    Wilcoxon's test sees more in noise that is alike in all pairs, but three outliers on the wrong
    side, which get its highest ranks, blind it at small levels; the sign test does not mind them.
    The smaller of both p-values is referred to its own distribution over all signs, which takes
    into account that there are two.

    Each ratio is as likely to be positive as negative where the centre is 0; "greater" says that it
    is positive, "less" negative. Exact with ties too; zeros are ranked and count for neither side
    (Pratt 1959). 1 where there is no evidence.
    """
    values = np.asarray(log_ratios, np.float64)
    sizes = np.abs(values)
    # Doubled, midranks are whole numbers: how many are smaller, and how many are no larger.
    ranks = 1 + sum(
        below(sizes[..., None, :], sizes[..., :, None]).sum(axis=-1)
        for below in (np.less, np.less_equal)
    )
    ranks[values == 0] = 0
    is_up = values < 0 if alternative == "less" else values > 0
    sums, numbers = (ranks * is_up).sum(axis=-1), is_up.sum(axis=-1)
    # Without ties all comparisons have the same ranks, and one table.
    kinds, kind_of = np.unique(
        np.sort(ranks, axis=-1).reshape(-1, values.shape[-1]), axis=0, return_inverse=True
    )
    kind_of = kind_of.reshape(sums.shape)
    p_values = np.empty(sums.shape)
    for number, kind in enumerate(kinds):
        table = _smaller_p(tuple(kind[kind > 0].tolist()), alternative == "two-sided")
        those = kind_of == number
        p_values[those] = table[sums[those], numbers[those]]
    return p_values


@cache
def _smaller_p(doubled_ranks: tuple[int, ...], is_two_sided: bool) -> Floats:
    """P-values of `location_p`, [sum of the positive ranks, number of positive signs]."""
    ways = np.zeros((sum(doubled_ranks) + 1, len(doubled_ranks) + 1))
    ways[0, 0] = 1
    for rank in doubled_ranks:
        picked = np.zeros_like(ways)
        picked[rank:, 1:] = ways[: ways.shape[0] - rank, :-1]
        ways = ways + picked
    chances = ways / 2.0 ** len(doubled_ranks)
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


def _upper_tails(pairs: int) -> Floats:
    """P(W >= w) for w = 0, 1, ...: W sums the ranks of pairs that a fair coin each picks."""
    ways = np.ones(1)
    for rank in range(1, pairs + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return _tails(ways / 2.0**pairs, is_two_sided=False)


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p-value that so many pairs can give: all of one sign."""
    return min(1.0, 2.0 ** (1 - pairs))


def walsh_averages(values: Sequence[float] | Floats) -> Floats:
    """The means of all pairs of values, each with itself too, ascending."""
    array = np.asarray(values, np.float64)
    rows, columns = np.triu_indices(array.shape[-1])
    averages: Floats = np.sort((array[..., rows] + array[..., columns]) / 2, axis=-1)
    return averages


def hodges_lehmann(log_ratios: Sequence[float] | Floats) -> Floats:
    """The shift that Wilcoxon's test would find least significant: median of Walsh averages."""
    median: Floats = np.median(walsh_averages(log_ratios), axis=-1)
    return median


def shift_interval(
    log_ratios: Sequence[float] | Floats, confidence: float
) -> tuple[Floats, Floats, float]:
    """The shifts that Wilcoxon's two-sided test at 1 - `confidence` does not reject.

    Bounds are Walsh averages counted from both ends (Hollander, Wolfe & Chicken, *Nonparametric
    Statistical Methods*, 3.3), so that the coverage is at least `confidence`.

    Gives low, high and the confidence; where so few pairs cannot have it, all of their range, with
    the confidence that this has.
    """
    averages = walsh_averages(log_ratios)
    pairs = np.shape(log_ratios)[-1]
    excluded = _excluded(pairs, confidence)
    if excluded == 0:
        return averages[..., 0], averages[..., -1], 1 - smallest_p(pairs)
    return averages[..., excluded - 1], averages[..., -excluded], confidence


@cache
def _excluded(pairs: int, confidence: float) -> int:
    """How many Walsh averages, counted from either end, the interval's bound is."""
    tails = _upper_tails(pairs)
    # P(W+ <= k) = P(W+ >= total - k).
    total = tails.size - 1
    excluded = 0
    while excluded < total // 2 and tails[total - excluded] <= (1 - confidence) / 2:
        excluded += 1
    return excluded


def robust_sigma(log_ratios: Sequence[float] | Floats) -> float:
    """The spread of single pairs as a standard deviation that outliers do not inflate."""
    values = np.asarray(log_ratios, np.float64)
    return NORMAL_MAD * float(np.median(np.abs(values - np.median(values))))


def undisturbed(base: Sequence[float], head: Sequence[float]) -> tuple[float, float]:
    """Means of the windows of both, of those whose ratios are in the middle half.

    A window of the base is compared with the window of the head beside it, which met the same load
    of the machine. What disturbed one of the two shows in their ratio.

    Figures are above 0, at least one of each, in the order of their windows; windows that only one
    of them has are left out. The means are geometric: their ratio is the mean ratio of the windows.
    """
    logs = np.log(list(zip(base, head, strict=False)))
    logs = logs[np.argsort(logs[:, 1] - logs[:, 0])]
    left_out = int(len(logs) * _LEFT_OUT)
    of_base, of_head = np.exp(logs[left_out : len(logs) - left_out].mean(axis=0))
    return float(of_base), float(of_head)
