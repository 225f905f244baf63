"""Bayesian bisection: which commit was the first slow one, given noisy measurements.

The unknowns are the first bad commit `k` (or none), the effect, which is by how much the log of a
time grows from `k` on, and the scale of the noise. A probe of commit `c` against a reference `r` is
the log-ratio of their times in one interleaved pair. Its mean is the effect if `r < k <= c` and 0
otherwise, with errors of a Student t distribution: its heavy tails keep a disturbed process from
deciding anything. All three unknowns are weighed on grids, so nothing about the noise is assumed to
be known.

The stated certainty assumes that errors are independent between pairs. An offset that belongs to a
commit, as its code layout may cause, is in all of its pairs: more pairs make a wrong answer more
certain, and the confirmation, which measures the same commit, need not notice. The probability
holds if such offsets are small beside half the step.

The commit to probe next is the one whose pair has the most expected information about `k`. One pair
at a time, that is the median of the posterior (Horstein 1963); several at a time are chosen so that
they are most informative together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EFFECTS: Floats = np.geomspace(0.005, 2.1, 48)
"""Effects that are weighed, as logs of ratios: 0.5 % to a factor of 8, each 14 % above the last."""
NOISES: Floats = np.geomspace(0.002, 0.08, 10)
"""Scales of a pair's error. The least is more than a quiet GPU shows: what a commit's memory
layout alone moves must not pass for certainty."""
DEGREES_OF_FREEDOM = 3.0
PRIOR_OF_NONE = 0.5
REFERENCE = -1
"""The index of the good end, which lies before the first candidate."""

_LOOKAHEADS = 96
_DETOUR = 1.8  # pairs that searches took in simulation, over those that the first bits suggest
_QUADRATURE = np.linspace(-7.0, 7.0, 57)
_SHARES = np.linspace(0.0, 1.0, 65)


@dataclass(frozen=True, slots=True)
class Suspects:
    """Commits in a row, one of which is the first bad one with this probability.

    More than one only where those before the last cannot be measured; an empty range says that no
    commit is bad.
    """

    commits: range
    probability: float


class FirstBad:
    """The posterior over the first bad of `count` commits in a row, their effect and the noise.

    Commits are 0 to `count` - 1, oldest first; `REFERENCE` is the good end before them and the last
    is the bad end, which must not be among the `unmeasurable`.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} commits cannot hold a first bad one; there must be 1.")
        self.count = count
        self.unmeasurable: set[int] = set()
        # Index `count` of the first axis stands for "none". The prior over effects is even in
        # their logs, as is that over noises: the grids are geometric.
        prior = np.full(count + 1, (1.0 - PRIOR_OF_NONE) / count)
        prior[count] = PRIOR_OF_NONE
        cells = EFFECTS.size * NOISES.size
        self._log_weights = np.tile(
            np.log(prior / cells)[:, None, None], (1, EFFECTS.size, NOISES.size)
        )
        self._joint: Floats | None = None

    def exclude(self, commit: int) -> None:
        """Note that `commit`, which lies between the two ends, cannot be measured."""
        if not 0 <= commit < self.count - 1:
            raise ValueError(
                f"commit {commit} of {self.count} cannot be left out: only commits between the two "
                f"ends can."
            )
        self.unmeasurable.add(commit)

    def observe(self, reference: int, commit: int, log_ratios: Sequence[float]) -> None:
        """Take in pairs: the logs of `commit`'s time over that of the older `reference`.

        Raises ValueError if `commit` does not come after `reference`, or a ratio is not finite.
        """
        if not REFERENCE <= reference < commit < self.count:
            raise ValueError(
                f"a probe compares a commit with an older one, not {commit} with {reference}."
            )
        ratios = np.asarray(log_ratios, np.float64)
        if not np.isfinite(ratios).all():
            raise ValueError(f"the log-ratios {log_ratios!r} are not all finite.")
        unmoved = _log_t(ratios[:, None], NOISES).sum(axis=0)
        moved = _log_t(ratios[:, None, None] - EFFECTS[:, None], NOISES).sum(axis=0)
        between = slice(reference + 1, commit + 1)
        self._log_weights[between] += moved
        self._log_weights[: reference + 1] += unmoved
        self._log_weights[commit + 1 :] += unmoved
        self._joint = None

    @property
    def joint(self) -> Floats:
        """The posterior, [candidates and none, effects, noises]."""
        if self._joint is None:
            weights = np.exp(self._log_weights - self._log_weights.max())
            self._joint = weights / weights.sum()
        return self._joint

    @property
    def probabilities(self) -> Floats:
        """How probably each commit is the first bad one, [count + 1]; the last entry is none."""
        probabilities: Floats = self.joint.sum(axis=(1, 2))
        return probabilities

    def suspects(self) -> Suspects:
        """What is most probable: a commit, or one of several that measuring cannot tell apart."""
        probabilities = self.probabilities
        best = Suspects(range(0), float(probabilities[self.count]))
        first = 0
        for last in self.measurable():
            probability = float(probabilities[first : last + 1].sum())
            if probability > best.probability:
                best = Suspects(range(first, last + 1), probability)
            first = last + 1
        return best

    def measurable(self) -> list[int]:
        """The commits that can be measured, oldest first; the bad end is the last of them."""
        return [commit for commit in range(self.count) if commit not in self.unmeasurable]

    @property
    def effect(self) -> float:
        """The effect if some commit is bad, as a log: its geometric mean over the posterior."""
        return math.exp(float(self._marginals()[0] @ np.log(EFFECTS)))

    def most_informative(self, pending: Sequence[int] = ()) -> int:
        """The commit whose pair with the reference is expected to tell most of where the step is.

        Whether there is a step was the gate's question, and the bad end is not asked again.
        `pending` commits are being measured on other devices: outcomes of their pairs are drawn
        from the posterior, so that pairs measured at the same time do not all ask the same.
        """
        commits = np.array(self.measurable()[:-1] or self.measurable(), np.intp)
        given = self._given_a_step()
        if not pending:
            shares = np.cumsum(given)[commits]
        else:
            outcomes = self._imagined(given, pending)
            shares = np.cumsum(outcomes, axis=1)[:, commits]
        bits = self._information()(np.atleast_2d(shares)).mean(axis=0)
        return int(commits[np.argmax(bits)])

    def pairs_left(self) -> int:
        """About how many more pairs it takes to know where the step is, if there is one."""
        given = self._given_a_step()
        known = given[given > 0]
        missing = -float(known @ np.log2(known))
        bits = float(self._information()(np.array([0.5]))[0])
        return math.ceil(_DETOUR * max(0.0, missing) / bits)

    def _given_a_step(self) -> Floats:
        """Probabilities of the candidates, [count], if one of them is the first bad one."""
        given: Floats = self.joint[: self.count].sum(axis=(1, 2))
        total = given.sum()
        if total == 0:
            return np.full(self.count, 1.0 / self.count)
        return np.asarray(given / total)

    def _imagined(self, given: Floats, pending: Sequence[int]) -> Floats:
        """Posteriors after outcomes of the pending pairs that may well come, [draws, count]."""
        draws = np.random.default_rng(0)
        effect = self.effect
        noise = math.exp(float(self._marginals()[1] @ np.log(NOISES)))
        truths = draws.choice(self.count, size=_LOOKAHEADS, p=given)
        log_weights = np.tile(np.log(np.maximum(given, 1e-300)), (_LOOKAHEADS, 1))
        for probed in pending:
            errors = noise * draws.standard_t(DEGREES_OF_FREEDOM, _LOOKAHEADS)
            ratios = effect * (truths <= probed) + errors
            log_weights[:, : probed + 1] += _log_t(ratios - effect, np.array(noise))[:, None]
            log_weights[:, probed + 1 :] += _log_t(ratios, np.array(noise))[:, None]
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        imagined: Floats = weights / weights.sum(axis=1, keepdims=True)
        return imagined

    def _marginals(self) -> tuple[Floats, Floats]:
        """Posteriors of the effect and of the noise if some commit is bad."""
        density = self.joint[: self.count].sum(axis=0)
        total = density.sum()
        density = density / total if total > 0 else np.full_like(density, 1.0 / density.size)
        return density.sum(axis=1), density.sum(axis=0)

    def _information(self) -> _Information:
        return _Information(*self._marginals())


class _Information:
    """Bits that one pair tells of whether its commit is bad, by how probable that was."""

    def __init__(self, effects: Floats, noises: Floats) -> None:
        effect, noise = float(effects @ EFFECTS), float(noises @ NOISES)
        # Wide enough for either outcome, and fine where the two overlap.
        grid = np.sort(np.concatenate([noise * _QUADRATURE, effect + noise * _QUADRATURE]))
        scale = np.array(noise)
        unmoved = np.exp(_log_t(grid, scale))
        moved = np.exp(_log_t(grid[:, None] - EFFECTS, scale)) @ effects
        share = _SHARES[:, None]
        mixed = share * moved + (1.0 - share) * unmoved
        gained = share * moved * np.log2(moved / mixed)
        gained += (1.0 - share) * unmoved * np.log2(unmoved / mixed)
        self._bits = gained @ np.gradient(grid)

    def __call__(self, shares: Floats) -> Floats:
        bits: Floats = np.interp(shares, _SHARES, self._bits)
        return bits


def _log_t(errors: Floats, scale: Floats) -> Floats:
    """The log density of errors under a Student t distribution of this scale."""
    half = (DEGREES_OF_FREEDOM + 1.0) / 2.0
    constant = math.lgamma(half) - math.lgamma(DEGREES_OF_FREEDOM / 2.0)
    constant -= 0.5 * math.log(DEGREES_OF_FREEDOM * math.pi)
    scaled = np.log1p((errors / scale) ** 2 / DEGREES_OF_FREEDOM)
    log_density: Floats = constant - np.log(scale) - half * scaled
    return log_density
