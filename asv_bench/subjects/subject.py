"""A figure that a subject has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a subject has."""

    name: str
    unit: str  # "seconds", or another word to print behind values
    better: Literal["lower", "higher"] = "lower"
    margin: float | None = None  # the difference that matters, as a fraction; None: the command's
