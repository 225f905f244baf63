"""The grid on which a curve of levels is weighed: levels, moves between them, shapes of noise.

A pair is the log-ratio of two processes, and its error has one of some shapes: Student's t of
unknown width, or one with two modes. Where some processes of either commit are slower by a fixed
amount, pairs lie around the truth and around two places beside it, as far to either side. Heavy
tails keep a disturbed process from deciding anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import Floats

Places = npt.NDArray[np.intp]

LEVELS = 65
_CREEPS = (0.0, 0.3)  # standard deviation of a commit's creep, in margins
OFFSETS = (0.1, 0.5)
"""Standard deviations of a commit's own offset that are weighed, in margins."""
CURVES = tuple((creep, offset) for creep in _CREEPS for offset in OFFSETS)
"""Kinds of curves: by how much each commit creeps, and its own offset, in margins."""
CURVE_PRIOR = np.array([0.72, 0.18, 0.08, 0.02])
CAUTIOUS_PRIOR = np.array([0.05, 0.85, 0.01, 0.09])
"""The same where offsets are to be reckoned with before a step is named."""
_LEAST_JUMP = 0.75  # in margins
_WIDER = (0.9, 0.08, 0.02)  # chances that a commit's noise is that of all, 3 and 9 times as wide
TINY = 1e-300

_DEGREES_OF_FREEDOM = 3.0
_DENSITY_AT_0 = 2.0 / (math.pi * math.sqrt(_DEGREES_OF_FREEDOM))
WIDTHS: Floats = np.geomspace(0.0015, 0.0015 * 3.0**5, 11)
"""Scales of errors with one mode, which are the first shapes: 0.15 % to 36 %. The least is more
than a quiet GPU shows: what a commit's memory layout alone moves must not pass for certainty."""
_MODES = [
    (distance / sharpness, distance, share)
    for distance in np.geomspace(0.01, 0.30, 13)
    for sharpness in (6.0, 14.0)
    for share in (0.10, 0.21)  # of pairs, to either side: of 11 % and 30 % slow processes
]
# By shape: the scale of the t distribution around each mode, how far the modes beside the truth
# lie, and the share of pairs around each of the two; 0 where there are none.
SCALES, DISTANCES, _SHARES = np.array([*((width, 0.0, 0.0) for width in WIDTHS), *_MODES]).T
SHAPE_PRIOR: Floats = np.log(
    np.repeat([0.8 / WIDTHS.size, 0.2 / len(_MODES)], [WIDTHS.size, len(_MODES)])
)
_ALL: Places = np.arange(SCALES.size)
# The place of the shape that is three times as wide: each width is the root of 3 times the last.
_THREE_TIMES = np.where(WIDTHS.size > _ALL, np.minimum(_ALL + 2, WIDTHS.size - 1), _ALL)


def densities(errors: Floats, shapes: Places = _ALL) -> Floats:
    """Densities of errors under some shapes, [shapes, *errors.shape]."""
    places = (slice(None), *(None for _ in range(errors.ndim)))
    scales, distances, shares = (one[shapes][places] for one in (SCALES, DISTANCES, _SHARES))
    density = (1.0 - 2.0 * shares) * _t(errors[None] / scales) / scales
    has_modes = _SHARES[shapes] > 0
    sides = sum(
        _t((errors[None] + side * distances[has_modes]) / scales[has_modes]) for side in (-1.0, 1.0)
    )
    density[has_modes] += shares[has_modes] / scales[has_modes] * sides
    return np.asarray(density, np.float64)


def _t(scaled: Floats) -> Floats:
    """The density of Student's t distribution."""
    return np.asarray(_DENSITY_AT_0 / (1.0 + scaled**2 / _DEGREES_OF_FREEDOM) ** 2)


def with_wider_noise(logs: Floats) -> Floats:
    """Logs of likelihoods of a commit's pairs, [shapes, levels], whose noise may be wider."""
    wider = logs[_THREE_TIMES]
    parts = zip(_WIDER, (logs, wider, wider[_THREE_TIMES]), strict=True)
    return np.asarray(np.logaddexp.reduce([math.log(chance) + part for chance, part in parts]))


class LevelGrid:
    """Levels that are weighed, evenly from `low` to `high` and beyond, and moves between them."""

    def __init__(self, low: float, high: float, margin: float, chance: float) -> None:
        beyond = 2.0 * margin + 0.35 * (high - low)
        self.low, self.high = low - beyond / 2.0, high + beyond / 2.0
        self.step = (high - low + 2.0 * beyond) / (LEVELS - 1)
        # 0 is one of them.
        zero = round((beyond - low) / self.step)
        self.levels: Floats = np.arange(-zero, LEVELS - zero) * np.float64(self.step)
        self._chance = chance
        self._moves: dict[int, tuple[Floats, Floats]] = {}
        apart = np.abs(self.levels[:, None] - self.levels)
        far = apart >= _LEAST_JUMP * margin
        self._jump = far / np.maximum(1, far.sum(axis=1, keepdims=True))
        self._margin = margin
        self.offsets = {offset: blur(self.levels, offset * margin) for offset in OFFSETS}
        # The ends are what the search is asked about: an offset of theirs is theirs to explain.
        self.start = np.stack([self.offsets[OFFSETS[0]][zero]] * len(CURVES))

    def transitions(self, commits: int) -> tuple[Floats, Floats]:
        """Over so many commits, with and without jumps, [curves, levels, levels]."""
        if commits not in self._moves:
            none = (1.0 - self._chance) ** commits
            one = commits * self._chance * (1.0 - self._chance) ** (commits - 1)
            more = max(0.0, 1.0 - none - one)
            jumps = one * self._jump + more / LEVELS
            staying = {
                creep: none * blur(self.levels, creep * self._margin * math.sqrt(commits))
                for creep in _CREEPS
            }
            stays = np.stack([staying[creep] for creep, _ in CURVES])
            self._moves[commits] = stays + jumps, stays
        return self._moves[commits]

    def noise(self, shapes: Floats) -> Floats:
        """Densities of what a pair shows, by level, [levels, figures]; they sum to 1."""
        used = np.flatnonzero(shapes > 0.01 * shapes.max())
        weights = shapes[used]
        width = float(weights @ np.maximum(SCALES[used], DISTANCES[used])) / weights.sum()
        low, high = self.levels[0] - 5.0 * width, self.levels[-1] + 5.0 * width
        figures = np.linspace(low, high, 120)
        density = np.tensordot(weights, densities(figures - self.levels[:, None], used), 1) + TINY
        return np.asarray(density / density.sum(axis=1, keepdims=True))


def blur(levels: Floats, sigma: float) -> Floats:
    """Chances to get from one level to another by a normal error, [levels, levels]."""
    step = levels[1] - levels[0]
    apart = (levels[:, None] - levels) / max(sigma, 0.1 * step)
    density = np.exp(-0.5 * apart**2)
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def times(densities: Floats, matrices: Floats) -> Floats:
    """Row vectors times matrices of their curve, or of their curve and shape."""
    if matrices.ndim == 3:
        return np.asarray(densities @ matrices)
    return np.asarray((densities[..., None, :] @ matrices)[..., 0, :])


def all_times(densities: Floats, matrices: Sequence[Floats]) -> Floats:
    """The same for a stack of densities."""
    if all(matrix.ndim == 3 for matrix in matrices):
        return np.asarray(densities @ np.stack(matrices))
    return np.stack([times(one, matrix) for one, matrix in zip(densities, matrices, strict=True)])
