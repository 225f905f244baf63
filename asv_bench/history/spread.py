"""By how much the stored figures of a series are off: each by itself, and all of a session."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import robust_sigma
from asv_bench.stats.segments import FEWEST, Labels

Floats: TypeAlias = npt.NDArray[np.float64]

LEAST_NOISE = 0.002
"""What a figure is taken to be uncertain by at least, however alike a few stored ones are."""
SESSION_NOISE = 0.01
"""What sessions are taken to differ by where too few were held to tell."""
REPEATED = 3
"""Processes of which the median is one that no single process can move."""
UNKNOWN_NOISE = 0.025
"""What single processes are taken to be off by where commits are too few to tell."""
_FEW, _MANY = 12, 50
_BULK, _NORMAL_BULK = 0.9, 1.645
"""A quantile of what noise is off by either way, and where a normal distribution has it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the logs of figures.

    `commit` is of what is new in each commit's figure, `session` of what a session adds to all of
    its figures.
    """

    commit: float
    session: float


def spread_of(
    levels: Floats, sessions: Labels, samples: Sequence[Sequence[float]], *, are_ratios: bool
) -> Spread:
    """How the figures of a series vary, apart from a few changes.

    Both are estimated from differences of neighbours, of which changes are outliers: the noise of a
    commit from those in one session, that of sessions from those in two.

    `levels` are logs of figures, `sessions` when they were measured, `samples` the processes; each
    is by commit. With `are_ratios` figures were divided by a reference of their session: then
    sessions differ by the reference's own noise at least; else by `SESSION_NOISE`, until
    differences tell.
    """
    differences = np.diff(levels)
    crosses = np.diff(sessions) != 0
    inside, across = differences[~crosses], differences[crosses]
    within = _noise_within(samples)
    if len(levels) < FEWEST:
        commit = _noise_of_few(samples, within)
        return Spread(commit, (commit if are_ratios else SESSION_NOISE) if len(across) else 0.0)
    if not len(across) or (within == 0 and len(inside) < len(across)):
        # One session, or nearly as many as commits: differences hold all that there is.
        return Spread(_noise_of(differences, samples, within), 0.0)
    commit = _noise_of(inside, samples, within)
    if len(across) < _FEW:
        return Spread(commit, commit if are_ratios else SESSION_NOISE)
    both = _sd_of(across, has_bulk=True) / math.sqrt(2.0)
    least = commit if are_ratios else 0.0
    return Spread(commit, max(least, math.sqrt(max(0.0, both**2 - commit**2))))


def _noise_of_few(samples: Sequence[Sequence[float]], within: float) -> float:
    """The same of so few commits that each difference may be a change: what processes say.

    Few of them say little, so that the error is taken for wider, as Student's t is.
    """
    if min(map(len, samples)) < REPEATED:
        return UNKNOWN_NOISE
    from scipy.stats import norm, t  # not at the top: every command would wait for it

    freedom = sum(map(len, samples)) - len(samples)
    return max(LEAST_NOISE, within * float(t.isf(0.001, freedom) / norm.isf(0.001)))


def _noise_of(differences: Floats, samples: Sequence[Sequence[float]], within: float) -> float:
    """What is new in each commit's figure.

    It is no less than the spread of each commit's own processes says. With few commits, most
    differences may be changes, and only the processes count.
    """
    commits = len(differences) + 1
    if commits < _FEW and within > 0:
        return max(LEAST_NOISE, within)
    has_bulk = commits >= _MANY or min(map(len, samples)) < REPEATED
    return max(LEAST_NOISE, _sd_of(differences, has_bulk=has_bulk) / math.sqrt(2.0), within)


def _sd_of(differences: Floats, *, has_bulk: bool) -> float:
    """Of differences of neighbours, of which some are changes.

    If processes have two modes, the median absolute deviation misses one. So where commits are too
    many for changes to be frequent, or nothing else tells, it is no less than the bulk says.
    """
    spread = robust_sigma(differences)
    levels = np.append(0.0, np.cumsum(differences[differences != 0]))
    if spread == 0 and len(np.unique(levels.round(9))) == len(levels):
        # Figures that are all equal but for steps, none of which is taken back.
        return 0.0
    if has_bulk:
        spread = max(spread, float(np.quantile(np.abs(differences), _BULK)) / _NORMAL_BULK)
    return spread


def _noise_within(samples: Sequence[Sequence[float]]) -> float:
    """The error of a commit's median, from the spread of its processes; 0 if that is unknown."""
    repeated = [one for one in samples if len(one) >= REPEATED and min(one) > 0]
    if not repeated:
        return 0.0
    return math.sqrt(statistics.fmean(_median_variance(np.log(one)) for one in repeated))


def _median_variance(values: Floats) -> float:
    """Of the median of as many values drawn from these, with any of them more than once.

    This bootstrap needs no shape of the noise, so it sees that a median jumps between two modes.
    """
    weights = np.diff(_lower_half(len(values)))
    ordered = np.sort(values)
    return float(weights @ (ordered - weights @ ordered) ** 2)


@cache
def _lower_half(count: int) -> Floats:
    """[count + 1] how probable it is that the median is among so many of the lowest values."""
    from scipy.stats import binom  # not at the top: every command would wait for it

    places = np.arange(count + 1) / count
    below = binom.sf([(count - 1) // 2, count // 2], count, places[:, None])
    return np.asarray(below.mean(axis=1), np.float64)
