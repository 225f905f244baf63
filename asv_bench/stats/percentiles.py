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


def summarize(values: Sequence[float] | npt.NDArray[np.float64], factor: float = 1.0) -> Summary:
    """The values that are not NaN, in another unit by `factor`; percentiles are linear between."""
    array = np.asarray(values, np.float64)
    array = array[~np.isnan(array)]
    if not array.size:
        return Summary(None, None, None, None, None)
    figures = (array.mean(), *np.percentile(array, (50, 95, 99)), array.max())
    return Summary(*(float(figure) * factor for figure in figures))
