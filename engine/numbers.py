"""Numbers as callers give them: Python's own, numpy's, and whatever else says that it is one."""

from __future__ import annotations

import math
import numbers
import operator
from typing import SupportsIndex

import numpy as np


def whole_number(value: object) -> int | None:
    """`value` as an int; None where it is no whole number. Truth values are none."""
    if type(value) is int:
        return value
    if not isinstance(value, SupportsIndex) or is_truth_value(value):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return None


def real_number(value: object) -> float | None:
    """`value` as a float; None where it is no real number, infinity where it is too large."""
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real) or is_truth_value(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_truth_value(value: object) -> bool:
    """Whether `value` is True or False, of Python's or of numpy's."""
    return isinstance(value, (bool, np.bool_))
