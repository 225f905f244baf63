"""The level of every commit of a range as a curve, from noisy pairs: where it steps, and how much.

The curve begins at the good end, at 0, and says by how much the log of a commit's time is larger.
From one commit to the next it stays, jumps by at least half of what matters, or, under one of the
hypotheses, creeps by a little at each commit. A commit may also differ from the curve by an offset
of its own, as its memory layout may cause.

A pair is the log-ratio of two processes. Its error is Student's t of unknown width, whose heavy
tails keep a disturbed process from deciding anything, or has two modes: where some processes of
either commit are slower by a fixed amount, pairs lie around the truth and as far to either side.
A commit's errors may be three or nine times wider than others'.

All of this is weighed on grids. Between two measured commits the curve is a Markov chain, so its
posterior is found by passing through the measured commits forwards and backwards (Rabiner 1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from asv_bench.stats.paired import Floats

Places = npt.NDArray[np.intp]

REFERENCE = -1
"""The index of the good end, which lies before the first candidate."""
JUMPS = 1.0
"""How many jumps a range is expected to have beforehand."""
_SHAPES_KEPT = 6
_ODD, _TRUSTED = 2.2, 8
"""So many scales of a pair's error off the curve, a commit is measured again, up to so often: a
single commit beside the others is no wider noise of its own then."""
_LEAST_BITS = 0.02

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


@dataclass(frozen=True, slots=True)
class Gap:
    """The commits between two measured ones, of which the later one belongs to them."""

    commits: range  # one of them made the jump, if there is one
    is_atomic: bool  # whether measuring can tell no more of them apart
    probability: float  # that there is a jump among them
    effect: float  # by how much the curve rises if so


@dataclass(frozen=True, slots=True)
class Level:
    """The curve at a measured commit: its mean, and an interval of 95 %."""

    commit: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Solution:
    """The posterior."""

    nodes: list[int]  # measured commits, the good end first
    jumps: Floats  # [gaps] probabilities of a jump
    levels: Floats  # [nodes, levels] the curve there
    # [gaps, levels] the level of a gap if there is no jump in it, and on either side of the jump if
    # there is one, times the probability of that.
    flat: Floats
    before: Floats
    after: Floats
    shapes: Floats  # of noise
    curves: Floats  # kinds of them


class LevelCurve:
    """The posterior over the levels of `count` commits in a row.

    Commits are 0 to `count` - 1, oldest first; `REFERENCE` is the good end before them and the last
    is the bad end, which must not be among the `unmeasurable`. `margin` is what matters, as a log.
    """

    def __init__(self, count: int, margin: float) -> None:
        self.count = count
        self.margin = margin
        self.unmeasurable: set[int] = set()
        self.fewest = 3  # pairs of a commit from which the grid of levels follows it
        self._prior = CURVE_PRIOR
        self._chance = min(0.25, JUMPS / count)
        self._ratios: dict[int, list[float]] = {count - 1: []}
        self._across: dict[tuple[int, int], list[float]] = {}
        self._grid = _LevelGrid(0.0, 0.0, margin, self._chance)
        # By commit: how many pairs were weighed, and their `_likelihood`.
        self._weighed: dict[int, tuple[int, Floats]] = {}

    def exclude(self, commit: int) -> None:
        """Note that a commit between the two ends cannot be measured."""
        self.unmeasurable.add(commit)
        self._ratios.pop(commit, None)
        self._forget()

    def expect_offsets(self) -> None:
        """Reckon with offsets of commits from now on: few commits show them, and they mislead."""
        self._prior = CAUTIOUS_PRIOR
        self._forget()

    def observe(self, reference: int, commit: int, log_ratios: Sequence[float]) -> None:
        """Take in pairs: the logs of `commit`'s time over that of the older `reference`."""
        own = self._ratios.setdefault(commit, [])
        if reference == REFERENCE:
            own.extend(log_ratios)
        else:
            self._ratios.setdefault(reference, [])
            self._across.setdefault((reference, commit), []).extend(log_ratios)
        self._forget()

    def _forget(self) -> None:
        for name in ("solution", "bits"):
            vars(self).pop(name, None)

    def gaps(self) -> list[Gap]:
        """Where jumps may be, oldest first."""
        solution = self.solution
        found = []
        for place, (older, newer) in enumerate(pairwise(solution.nodes)):
            chance, effect = float(solution.jumps[place]), 0.0
            if chance > 0:
                rise = solution.after[place] - solution.before[place]
                effect = float(rise @ self._grid.levels) / chance
            is_atomic = self.unmeasurable.issuperset(range(older + 1, newer))
            found.append(Gap(range(older + 1, newer + 1), is_atomic, chance, effect))
        return found

    def levels(self) -> list[Level]:
        """The curve at the measured commits, the good end left out."""
        solution, grid, step = self.solution, self._grid.levels, self._grid.step
        bounds = np.append(grid - step / 2.0, grid[-1] + step / 2.0)
        found = []
        for node, density in zip(solution.nodes[1:], solution.levels[1:], strict=True):
            low, high = np.interp([0.025, 0.975], np.append(0.0, np.cumsum(density)), bounds)
            found.append(Level(node, float(density @ grid), float(low), float(high)))
        return found

    @property
    def scale(self) -> float:
        """How far a pair lies from the truth, typically, as a log."""
        return float(self.solution.shapes @ np.maximum(SCALES, DISTANCES))

    def odd(self) -> list[int]:
        """Commits off the curve of which too few pairs were taken in for it to follow."""
        few = [one for one in self.levels() if 0 < self.pairs_of(one.commit) < _TRUSTED]
        off = {one.commit: abs(np.mean(self._ratios[one.commit]) - one.mean) for one in few}
        return [commit for commit, error in off.items() if error > _ODD * self.scale]

    def measurable(self) -> list[int]:
        """The commits that can be measured, oldest first; the bad end is the last of them."""
        return [commit for commit in range(self.count) if commit not in self.unmeasurable]

    def unmeasured(self) -> list[int]:
        """Those of which no pair was taken in."""
        return [commit for commit in self.measurable() if commit not in self._ratios]

    def nearest(self, commit: int) -> int:
        """The measurable commit next to this place."""
        return min(self.measurable(), key=lambda other: abs(other - commit))

    def pairs_left(self) -> int:
        """About how many more pairs it takes to know where the steps are, if there are any."""
        missing = 0.0
        for gap in self.gaps():
            chance = gap.probability
            if 0.0 < chance < 1.0:
                missing -= chance * math.log2(chance) + (1.0 - chance) * math.log2(1.0 - chance)
            missing += 0.0 if gap.is_atomic else chance * math.log2(len(gap.commits))
        return math.ceil(missing / max(float(self.bits.max()), _LEAST_BITS))

    def pairs_of(self, commit: int) -> int:
        """How many pairs of a commit and the good end were taken in."""
        return len(self._ratios.get(commit, ()))

    def most_informative(self, pending: Sequence[int] = ()) -> int:
        """The commit whose pair with the good end is expected to tell most of where jumps are.

        What the pairs of `pending` commits, on other devices, will tell is not asked again.
        """
        jumps = np.zeros(self.count)
        for gap in self.gaps():
            jumps[gap.commits.start : gap.commits.stop] = gap.probability / len(gap.commits)
        # The share of jumps that lie at or before each commit.
        passed = np.cumsum(jumps) / max(jumps.sum(), TINY)
        bits = self.bits
        for other in pending:
            apart = np.abs(passed - passed[other])
            bits = bits * (1.0 - min(1.0, bits[other]) * np.maximum(0.0, 1.0 - 2.0 * apart))
        allowed = np.array(self.measurable())
        return int(allowed[np.argmax(bits[allowed])])

    @cached_property
    def bits(self) -> Floats:
        """Bits that a pair of each commit is expected to tell of where jumps are, [count]."""
        solution = self.solution
        nodes = np.array(solution.nodes)
        noise = self._grid.noise(solution.shapes)
        flat, before, after = (
            part @ noise for part in (solution.flat, solution.before, solution.after)
        )
        # A measured commit lies in the gap that it ends, and in the one that it begins.
        commits = np.concatenate([np.arange(nodes[-1] + 1), nodes[1:-1]])
        places = np.searchsorted(nodes, commits[: nodes[-1] + 1]) - 1
        places = np.concatenate([places, np.arange(1, nodes.size - 1)])
        share = (commits - nodes[places]) / np.diff(nodes)[places]
        parts = np.stack(
            [flat[places], (1.0 - share)[:, None] * before[places], share[:, None] * after[places]]
        )
        weights = parts.sum(axis=-1, keepdims=True)
        odds = parts / np.maximum(weights * parts.sum(axis=0), TINY)
        told = np.zeros(self.count)
        of_each = (parts * np.log2(np.maximum(odds, TINY))).sum(axis=(0, 2))
        np.maximum.at(told, commits, of_each)
        # How much of a pair is news: a commit's offset is in all of its pairs.
        offsets = np.array([offset for _, offset in CURVES]) * self.margin
        ratio = float(solution.curves @ offsets**2) / float(solution.shapes @ SCALES) ** 2
        pairs = np.array([self.pairs_of(commit) for commit in range(self.count)])
        news: Floats = 1.0 / ((1.0 + ratio * pairs) * (1.0 + ratio * (pairs + 1)))
        return told * news

    @cached_property
    def solution(self) -> _Solution:
        """The posterior of the pairs so far."""
        nodes = [REFERENCE, *sorted(self._ratios)]
        kept, emissions = self._emissions(nodes[1:])
        forward = [np.repeat(self._grid.start[:, None], kept.size, axis=1)]
        moves, moved, stayed = [], [], []
        log_evidence = np.log(self._prior)[:, None] + SHAPE_PRIOR[kept]
        for (older, newer), emission in zip(pairwise(nodes), emissions, strict=True):
            move, stay = self._grid.transitions(newer - older)
            if across := self._across.get((older, newer)):
                factor = self._factor(across, kept)
                move, stay = move[:, None] * factor, stay[:, None] * factor
            moves.append((move, stay))
            moved.append(_times(forward[-1], move))
            stayed.append(_times(forward[-1], stay))
            ahead = moved[-1] * emission
            total = ahead.sum(axis=-1, keepdims=True) + TINY
            log_evidence = log_evidence + np.log(total[..., 0])
            forward.append(ahead / total)
        behind = np.ones_like(forward[0])
        backward, weighed, kept_level = [behind], [], []
        for emission, (move, stay) in zip(emissions[::-1], moves[::-1], strict=True):
            seen = emission * behind
            seen = seen / (seen.max(axis=-1, keepdims=True) + TINY)
            behind = _times(seen, np.swapaxes(move, -1, -2))
            weighed.append(seen)
            backward.append(behind)
            kept_level.append(_times(seen, np.swapaxes(stay, -1, -2)))
        weights = np.exp(log_evidence - log_evidence.max())
        weights = weights / weights.sum()
        left, here = np.stack(forward), np.stack(forward) * np.stack(backward[::-1])
        total = here.sum(axis=-1) + TINY
        levels = np.einsum("kcs,kcsl->kl", weights / total, here)
        share, whole, left = (weights / total)[:-1], here[:-1], left[:-1]
        right = np.stack(weighed[::-1])
        flat = left * np.stack(kept_level[::-1])
        reached = right * (np.stack(moved) - np.stack(stayed))
        flat, before, after = (
            np.maximum(0.0, np.einsum("kcs,kcsl->kl", share, part))
            for part in (flat, whole - flat, reached)
        )
        shapes = np.zeros(SCALES.size)
        shapes[kept] = weights.sum(axis=0)
        jumps, curves = np.minimum(1.0, before.sum(axis=1)), weights.sum(axis=1)
        return _Solution(nodes, jumps, levels, flat, before, after, shapes, curves)

    def _emissions(self, nodes: Sequence[int]) -> tuple[Places, Floats]:
        """The shapes that are probable at all, and likelihoods, [nodes, curves, shapes, levels]."""
        self._fit_grid()
        logs = np.stack([self._likelihood(node) for node in nodes])
        # A commit's noise may be wider.
        wider = logs[:, _THREE_TIMES]
        parts = zip(_WIDER, (logs, wider, wider[:, _THREE_TIMES]), strict=True)
        likelihoods: Floats = np.logaddexp.reduce([math.log(one) + part for one, part in parts])
        # By the mean over levels.
        top = likelihoods.max(axis=-1, keepdims=True)
        means = top[..., 0] + np.log(np.exp(likelihoods - top).mean(axis=-1))
        kept = np.argsort(SHAPE_PRIOR + means.sum(axis=0))[-_SHAPES_KEPT:]
        logs = likelihoods[:, kept]
        emissions = np.exp(logs - logs.max(axis=(1, 2), keepdims=True))
        blurs = self._grid.offsets
        blurred = np.stack([emissions @ blurs[offset] for _, offset in CURVES], axis=1)
        blurred[-1] = emissions[-1] @ blurs[OFFSETS[0]]
        return kept, blurred

    def _fit_grid(self) -> None:
        """Let the grid hold every commit that was measured often enough."""
        old = self._grid
        middles = [float(np.median(r)) for r in self._ratios.values() if len(r) >= self.fewest]
        low, high = min([old.low, *middles]), max([old.high, *middles])
        if (low, high) != (old.low, old.high):
            self._grid = _LevelGrid(low, high, self.margin, self._chance)
            self._weighed = {}

    def _likelihood(self, commit: int) -> Floats:
        """Logs of the likelihood of a commit's pairs, [shapes, levels]."""
        ratios = self._ratios[commit]
        done, logs = self._weighed.get(commit, (0, np.zeros((SCALES.size, LEVELS))))
        if done < len(ratios):
            errors = np.asarray(ratios[done:])[:, None] - self._grid.levels
            logs = np.log(densities(errors)).sum(axis=1) + logs
            self._weighed[commit] = len(ratios), logs
        return logs

    def _factor(self, ratios: Sequence[float], kept: Places) -> Floats:
        """Likelihoods of pairs of two neighbours with offsets, [curves, shapes, levels, levels]."""
        rises: Floats = np.arange(1 - LEVELS, LEVELS) * np.float64(self._grid.step)
        logs = np.log(densities(np.asarray(ratios)[:, None] - rises, kept)).sum(axis=1)
        likelihoods = np.exp(logs - logs.max())
        # Both have an offset, which is in all of these pairs.
        sigmas = [math.sqrt(2.0) * offset * self.margin for _, offset in CURVES]
        factors = np.stack([likelihoods @ _blur(rises, sigma) for sigma in sigmas])
        places = np.arange(LEVELS)[None, :] - np.arange(LEVELS)[:, None] + LEVELS - 1
        return np.asarray(factors[..., places] + TINY)


class _LevelGrid:
    """Levels that are weighed, evenly from `low` to `high` and beyond, and moves between them."""

    def __init__(self, low: float, high: float, margin: float, chance: float) -> None:
        beyond = 2.0 * margin + 0.35 * (high - low)
        self.low, self.high = low - beyond / 2.0, high + beyond / 2.0
        self.step = (high - low + 2.0 * beyond) / (LEVELS - 1)
        # 0 is one of them.
        zero = round((beyond - low) / self.step)
        self.levels: Floats = np.arange(-zero, LEVELS - zero) * np.float64(self.step)
        self._margin, self._chance = margin, chance
        self._moves: dict[int, tuple[Floats, Floats]] = {}
        far = np.abs(self.levels[:, None] - self.levels) >= _LEAST_JUMP * margin
        self._jump = far / np.maximum(1, far.sum(axis=1, keepdims=True))
        self.offsets = {offset: _blur(self.levels, offset * margin) for offset in OFFSETS}
        # The ends are what the search is asked about: an offset of theirs is theirs to explain.
        self.start = np.stack([self.offsets[OFFSETS[0]][zero]] * len(CURVES))

    def transitions(self, commits: int) -> tuple[Floats, Floats]:
        """Over so many commits, with and without jumps, [curves, levels, levels]."""
        if commits not in self._moves:
            none = (1.0 - self._chance) ** commits
            one = commits * self._chance * (1.0 - self._chance) ** (commits - 1)
            jumps = one * self._jump + max(0.0, 1.0 - none - one) / LEVELS
            sigmas = [creep * self._margin * math.sqrt(commits) for creep, _ in CURVES]
            stays = np.stack([none * _blur(self.levels, sigma) for sigma in sigmas])
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


def densities(errors: Floats, shapes: Places = _ALL) -> Floats:
    """Densities of errors under some shapes, [shapes, *errors.shape]."""

    def t(scaled: Floats) -> Floats:
        return np.asarray(_DENSITY_AT_0 / (1.0 + scaled**2 / _DEGREES_OF_FREEDOM) ** 2)

    places = (slice(None), *(None for _ in range(errors.ndim)))
    scales, distances, shares = (one[shapes][places] for one in (SCALES, DISTANCES, _SHARES))
    density = (1.0 - 2.0 * shares) * t(errors[None] / scales) / scales
    has_modes = _SHARES[shapes] > 0
    sides = sum(
        t((errors[None] + side * distances[has_modes]) / scales[has_modes]) for side in (-1.0, 1.0)
    )
    density[has_modes] += shares[has_modes] / scales[has_modes] * sides
    return np.asarray(density, np.float64)


def _blur(levels: Floats, sigma: float) -> Floats:
    """Chances to get from one level to another by a normal error, [levels, levels]."""
    apart = (levels[:, None] - levels) / max(sigma, 0.1 * (levels[1] - levels[0]))
    density = np.exp(-0.5 * apart**2)
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def _times(densities: Floats, matrices: Floats) -> Floats:
    """Row vectors times matrices of their curve, or of their curve and shape."""
    if matrices.ndim == 3:
        return np.asarray(densities @ matrices)
    return np.asarray((densities[..., None, :] @ matrices)[..., 0, :])
