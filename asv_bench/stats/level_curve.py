"""The level of every commit of a range as a curve, from noisy pairs: where it steps, and how much.

The curve begins at the good end, at 0, and says by how much the log of a commit's time is larger.
From one commit to the next it stays, jumps by at least half of what matters, or, under one of the
hypotheses, creeps by a little at each commit. A commit may also differ from the curve by an offset
of its own, as its memory layout may cause. Errors of pairs have one of several shapes
(`level_grid`), and a commit's may be three or nine times wider than others'.

All of this is weighed on grids. Between two measured commits the curve is a Markov chain, so its
posterior is found by passing through the measured commits forwards and backwards (Rabiner 1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asv_bench.stats.level_grid import (
    CAUTIOUS_PRIOR,
    CURVE_PRIOR,
    CURVES,
    LEVELS,
    OFFSETS,
    SCALES,
    SHAPE_PRIOR,
    TINY,
    LevelGrid,
    Places,
    all_times,
    blur,
    densities,
    times,
    with_wider_noise,
)
from asv_bench.stats.paired import Floats

REFERENCE = -1
"""The index of the good end, which lies before the first candidate."""
JUMPS = 1.0
"""How many jumps a range is expected to have beforehand."""
_SHAPES_KEPT = 6
_FEW = 3  # pairs of a commit from which the grid of levels follows it
_LEAST_BITS = 0.02


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
    # The posteriors over the shapes of noise and the kinds of curves.
    shapes: Floats
    curves: Floats


class LevelCurve:
    """The posterior over the levels of `count` commits in a row.

    Commits are 0 to `count` - 1, oldest first; `REFERENCE` is the good end before them and the last
    is the bad end, which must not be among the `unmeasurable`. `margin` is what matters, as a log.
    """

    def __init__(self, count: int, margin: float) -> None:
        self.count = count
        self.margin = margin
        self.unmeasurable: set[int] = set()
        self._prior = CURVE_PRIOR
        self._chance = min(0.25, JUMPS / count)
        self._ratios: dict[int, list[float]] = {count - 1: []}
        self._across: dict[tuple[int, int], list[float]] = {}
        self._grid = LevelGrid(0.0, 0.0, margin, self._chance)
        # By commit: how many pairs were weighed, and their `_likelihood`.
        self._weighed: dict[int, tuple[int, Floats]] = {}
        self._solution: _Solution | None = None
        self._bits: Floats | None = None

    def exclude(self, commit: int) -> None:
        """Note that `commit`, which lies between the two ends, cannot be measured."""
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
        self._solution = self._bits = None

    @property
    def solution(self) -> _Solution:
        if self._solution is None:
            self._solution = self._solve()
        return self._solution

    def gaps(self) -> list[Gap]:
        """Where jumps may be, oldest first."""
        solution = self.solution
        levels = self._grid.levels
        found = []
        pairs = zip(solution.nodes[:-1], solution.nodes[1:], strict=True)
        for place, (older, newer) in enumerate(pairs):
            inside = range(older + 1, newer)
            chance = float(solution.jumps[place])
            effect = 0.0
            if chance > 0:
                rise = solution.after[place] - solution.before[place]
                effect = float(rise @ levels) / chance
            is_atomic = all(commit in self.unmeasurable for commit in inside)
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

    def measurable(self) -> list[int]:
        """The commits that can be measured, oldest first; the bad end is the last of them."""
        return [commit for commit in range(self.count) if commit not in self.unmeasurable]

    def nearest(self, commit: int) -> int:
        """The measurable commit next to this place."""
        return min(self.measurable(), key=lambda other: abs(other - commit))

    def pairs_left(self) -> int:
        """About how many more pairs it takes to know where the steps are, if there are any."""
        bits = self.bits()
        missing = 0.0
        for gap in self.gaps():
            chance = gap.probability
            if 0.0 < chance < 1.0:
                missing -= chance * math.log2(chance) + (1.0 - chance) * math.log2(1.0 - chance)
            missing += 0.0 if gap.is_atomic else chance * math.log2(len(gap.commits))
        return math.ceil(missing / max(float(bits.max()), _LEAST_BITS))

    def pairs_of(self, commit: int) -> int:
        """How many pairs of a commit and the good end were taken in."""
        return len(self._ratios.get(commit, ()))

    def most_informative(self, pending: Sequence[int] = ()) -> int:
        """The commit whose pair with the good end is expected to tell most of where jumps are.

        `pending` commits are being measured on other devices: what their pairs will tell is not
        asked again.
        """
        bits = self.bits()
        passed = self._passed()
        for other in pending:
            apart = np.abs(passed - passed[other])
            bits = bits * (1.0 - min(1.0, bits[other]) * np.maximum(0.0, 1.0 - 2.0 * apart))
        allowed = np.array(self.measurable())
        return int(allowed[np.argmax(bits[allowed])])

    def _passed(self) -> Floats:
        """The share of jumps that lie at or before each commit, [count]."""
        jumps = np.zeros(self.count)
        for gap in self.gaps():
            jumps[gap.commits.start : gap.commits.stop] = gap.probability / len(gap.commits)
        return np.asarray(np.cumsum(jumps) / max(jumps.sum(), TINY))

    def bits(self) -> Floats:
        """Bits that a pair of each commit is expected to tell of where jumps are, [count]."""
        if self._bits is None:
            self._bits = self._told() * self._new_share()
        return self._bits

    def _told(self) -> Floats:
        """The bits where commits have no offsets."""
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
        told = (parts * np.log2(np.maximum(odds, TINY))).sum(axis=(0, 2))
        bits = np.zeros(self.count)
        np.maximum.at(bits, commits, told)
        return bits

    def _new_share(self) -> Floats:
        """How much of a pair of each commit is news: its offset is in all of its pairs, [count]."""
        solution = self.solution
        offsets = np.array([offset for _, offset in CURVES]) * self.margin
        ratio = float(solution.curves @ offsets**2) / float(solution.shapes @ SCALES) ** 2
        pairs = np.array([self.pairs_of(commit) for commit in range(self.count)])
        share: Floats = 1.0 / ((1.0 + ratio * pairs) * (1.0 + ratio * (pairs + 1)))
        return share

    def _likelihood(self, commit: int) -> Floats:
        """Logs of the likelihood of a commit's pairs, [shapes, levels]."""
        ratios = self._ratios[commit]
        done, logs = self._weighed.get(commit, (0, np.zeros((SCALES.size, LEVELS))))
        if done < len(ratios):
            errors = np.asarray(ratios[done:])[:, None] - self._grid.levels
            logs = np.log(densities(errors)).sum(axis=1) + logs
            self._weighed[commit] = len(ratios), logs
        return logs

    def _fit_grid(self) -> None:
        """Let the grid hold every commit that was measured often enough."""
        middles = [float(np.median(r)) for r in self._ratios.values() if len(r) >= _FEW]
        low, high = min([0.0, *middles]), max([0.0, *middles])
        old = self._grid
        if low < old.low or high > old.high:
            ends = min(low, old.low), max(high, old.high)
            self._grid = LevelGrid(*ends, self.margin, self._chance)
            self._weighed = {}

    def _solve(self) -> _Solution:
        self._fit_grid()
        grid = self._grid
        nodes = sorted(self._ratios)
        likelihoods = np.stack([with_wider_noise(self._likelihood(node)) for node in nodes])
        # Few shapes are probable at all: by the mean over levels.
        top = likelihoods.max(axis=-1, keepdims=True)
        means = top[..., 0] + np.log(np.exp(likelihoods - top).mean(axis=-1))
        kept = np.argsort(SHAPE_PRIOR + means.sum(axis=0))[-_SHAPES_KEPT:]
        logs = likelihoods[:, kept]
        emissions = np.exp(logs - logs.max(axis=(1, 2), keepdims=True))
        # [nodes, curves, shapes, levels]
        ends = emissions[-1] @ grid.offsets[OFFSETS[0]]
        emissions = np.stack([emissions @ grid.offsets[offset] for _, offset in CURVES], axis=1)
        emissions[-1] = ends
        moves, stays = [], []
        for older, newer in zip([REFERENCE, *nodes[:-1]], nodes, strict=True):
            move, stay = grid.transitions(newer - older)
            across = self._across.get((older, newer))
            if across:
                factor = self._factor(across, kept)
                move, stay = move[:, None] * factor, stay[:, None] * factor
            moves.append(move)
            stays.append(stay)
        return self._passes([REFERENCE, *nodes], kept, emissions, moves, stays)

    def _factor(self, ratios: Sequence[float], kept: Places) -> Floats:
        """Likelihoods of pairs of two commits next to each other, [curves, shapes, levels, levels].

        Both commits have offsets, which are in all of these pairs.
        """
        rises: Floats = np.arange(1 - LEVELS, LEVELS) * np.float64(self._grid.step)
        errors = np.asarray(ratios)[:, None] - rises
        logs = np.log(densities(errors, kept)).sum(axis=1)
        likelihoods = np.exp(logs - logs.max())
        blurred = {
            offset: likelihoods @ blur(rises, math.sqrt(2.0) * offset * self.margin)
            for offset in OFFSETS
        }
        factors = np.stack([blurred[offset] for _, offset in CURVES])
        places = np.arange(LEVELS)[None, :] - np.arange(LEVELS)[:, None] + LEVELS - 1
        return np.asarray(factors[..., places] + TINY)

    def _passes(
        self,
        nodes: list[int],
        kept: Places,
        emissions: Floats,
        moves: list[Floats],
        stays: list[Floats],
    ) -> _Solution:
        grid = self._grid
        forward = [np.repeat(grid.start[:, None], kept.size, axis=1)]
        moved: list[Floats] = []
        log_evidence = np.log(self._prior)[:, None] + SHAPE_PRIOR[kept]
        for emission, move in zip(emissions, moves, strict=True):
            moved.append(times(forward[-1], move))
            ahead = moved[-1] * emission
            total = ahead.sum(axis=-1, keepdims=True) + TINY
            log_evidence = log_evidence + np.log(total[..., 0])
            forward.append(ahead / total)
        behind = np.ones_like(forward[0])
        backward, weighed = [behind], []
        for emission, move in zip(emissions[::-1], moves[::-1], strict=True):
            seen = emission * behind
            seen = seen / (seen.max(axis=-1, keepdims=True) + TINY)
            behind = times(seen, np.swapaxes(move, -1, -2))
            weighed.append(seen)
            backward.append(behind)
        backward.reverse()
        weighed.reverse()
        weights = np.exp(log_evidence - log_evidence.max())
        weights = weights / weights.sum()
        left, here = np.stack(forward), np.stack(forward) * np.stack(backward)
        total = here.sum(axis=-1) + TINY
        levels = np.einsum("kcs,kcsl->kl", weights / total, here)
        share, whole, left = (weights / total)[:-1], here[:-1], left[:-1]
        right = np.stack(weighed)
        flat = left * all_times(right, [np.swapaxes(stay, -1, -2) for stay in stays])
        reached = right * (np.stack(moved) - all_times(left, stays))
        flat, before, after = (
            np.maximum(0.0, np.einsum("kcs,kcsl->kl", share, part))
            for part in (flat, whole - flat, reached)
        )
        shapes = np.zeros(SCALES.size)
        shapes[kept] = weights.sum(axis=0)
        jumps, curves = np.minimum(1.0, before.sum(axis=1)), weights.sum(axis=1)
        return _Solution(nodes, jumps, levels, flat, before, after, shapes, curves)
