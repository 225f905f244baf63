"""Shapes that the error of a pair may have: Student's t of unknown width, or one with two modes.

A pair is the log-ratio of two processes. Where some processes of either commit are slower by a
fixed amount, pairs lie around the truth and around two places beside it, as far to either side.
Heavy tails keep a disturbed process from deciding anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DEGREES_OF_FREEDOM = 3.0
_WIDER = 2  # places in the grid of scales, each of which is the root of 3 times the last
SCALES: Floats = np.geomspace(0.0015, 0.0015 * 3.0**5, 11)
"""Scales that are weighed: 0.15 % to 36 %. The least is more than a quiet GPU shows: what a
commit's memory layout alone moves must not pass for certainty."""
_DISTANCES: Floats = np.geomspace(0.01, 0.30, 13)
_SHARPNESS = (6.0, 14.0)
_SHARES = (0.10, 0.21)  # of pairs beside the truth, to either side: of 11 % and 30 % slow processes


@dataclass(frozen=True, slots=True)
class NoiseShapes:
    """Some shapes, as arrays over them."""

    scales: Floats  # of the t distribution around each mode
    # How far the modes beside the truth lie, and the share of pairs around each of the two; 0 where
    # there are none.
    distances: Floats
    shares: Floats
    wider: npt.NDArray[np.intp]  # by shape: the place of the one that is three times as wide
    log_prior: Floats  # how probable each is beforehand

    def taken(self, places: npt.NDArray[np.intp]) -> NoiseShapes:
        """Some of the shapes; `wider` has no meaning among them."""
        arrays = (self.scales[places], self.distances[places], self.shares[places])
        return NoiseShapes(*arrays, self.wider[places], self.log_prior[places])

    def densities(self, errors: Floats) -> Floats:
        """Densities of errors, [shapes, *errors.shape]."""
        places = (slice(None), *(None for _ in range(errors.ndim)))
        scales, distances = self.scales[places], self.distances[places]
        shares = self.shares[places]
        density = (1.0 - 2.0 * shares) * _t(errors[None] / scales) / scales
        has_modes = self.shares > 0
        sides = sum(
            _t((errors[None] + side * distances[has_modes]) / scales[has_modes])
            for side in (-1.0, 1.0)
        )
        density[has_modes] += shares[has_modes] / scales[has_modes] * sides
        return np.asarray(density, np.float64)


def _all_shapes() -> NoiseShapes:
    modes = [(m / sharp, m, share) for m in _DISTANCES for sharp in _SHARPNESS for share in _SHARES]
    shapes = np.array([*((scale, 0.0, 0.0) for scale in SCALES), *modes])
    count = len(shapes)
    wider = np.arange(count)
    wider[: SCALES.size] = np.minimum(wider[: SCALES.size] + _WIDER, SCALES.size - 1)
    prior = np.full(count, 0.2 / len(modes))
    prior[: SCALES.size] = 0.8 / SCALES.size
    return NoiseShapes(shapes[:, 0], shapes[:, 1], shapes[:, 2], wider, np.log(prior))


def _t(scaled: Floats) -> Floats:
    """The density of Student's t distribution."""
    half = (DEGREES_OF_FREEDOM + 1.0) / 2.0
    constant = math.lgamma(half) - math.lgamma(DEGREES_OF_FREEDOM / 2.0)
    constant -= 0.5 * math.log(DEGREES_OF_FREEDOM * math.pi)
    # A power of a whole number of halves is much faster than of any number.
    density: Floats = math.exp(constant) / (1.0 + scaled**2 / DEGREES_OF_FREEDOM) ** int(half)
    return density


SHAPES = _all_shapes()
