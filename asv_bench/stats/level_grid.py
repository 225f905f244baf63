"""The grid of levels on which a curve is weighed, and the chances to move from one to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asv_bench.stats.noise_shapes import SHAPES, Floats

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


@dataclass(frozen=True, slots=True)
class Emission:
    """Logs of the likelihood of a commit's pairs, [shapes, levels].

    `mixed` allows that this commit's noise is wider; `rough` is the mean over levels, [shapes].
    """

    pairs: int
    logs: Floats
    mixed: Floats
    rough: Floats

    @classmethod
    def of(cls, pairs: int, logs: Floats) -> Emission:
        wider = logs[SHAPES.wider]
        parts = zip(_WIDER, (logs, wider, wider[SHAPES.wider]), strict=True)
        mixed = np.logaddexp.reduce([math.log(chance) + part for chance, part in parts])
        top = mixed.max(axis=-1, keepdims=True)
        rough = top[:, 0] + np.log(np.exp(mixed - top).mean(axis=-1))
        return cls(pairs, logs, mixed, rough)


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
        weights, some = shapes[used], SHAPES.taken(used)
        width = float(weights @ np.maximum(some.scales, some.distances)) / weights.sum()
        low, high = self.levels[0] - 5.0 * width, self.levels[-1] + 5.0 * width
        figures = np.linspace(low, high, 120)
        density = np.tensordot(weights, some.densities(figures - self.levels[:, None]), 1) + TINY
        normalised: Floats = density / density.sum(axis=1, keepdims=True)
        return normalised


def blur(levels: Floats, sigma: float) -> Floats:
    """Chances to get from one level to another by a normal error, [levels, levels]."""
    step = levels[1] - levels[0]
    apart = (levels[:, None] - levels) / max(sigma, 0.1 * step)
    density = np.exp(-0.5 * apart**2)
    chances: Floats = density / density.sum(axis=1, keepdims=True)
    return chances


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
