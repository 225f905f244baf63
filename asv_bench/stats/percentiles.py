"""Percentiles and means, with nothing to say about no values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in five figures, in the unit of its values; all None where it is empty."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    def scaled(self, factor: float) -> Summary:
        """The same distribution in another unit."""
        values = (self.mean, self.p50, self.p95, self.p99, self.max)
        return Summary(*(None if value is None else value * factor for value in values))


def summarize(values: Sequence[float] | npt.NDArray[np.float64]) -> Summary:
    """Mean, percentiles (linear between neighbours) and maximum of the values that are not NaN."""
    array = np.asarray(values, np.float64)
    array = array[~np.isnan(array)]
    if not array.size:
        return Summary(None, None, None, None, None)
    p50, p95, p99 = (float(value) for value in np.percentile(array, (50, 95, 99)))
    return Summary(float(array.mean()), p50, p95, p99, float(array.max()))
