"""What a search times: a decode step cut as a table says, or the reason why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from asv_bench.errors import BenchError
from asv_bench.lab.tune.candidates import Point
from kernels.tiles.table import ConfigTable

Timer: TypeAlias = Callable[[], float]
"""Microseconds of a step, measured anew by each call."""


class Rejected(BenchError):
    """A candidate does not compile, does not fit, or computes something else."""


class Workbench(Protocol):
    """What turns a table into something that can be timed."""

    def prepare(self, table: ConfigTable, point: Point) -> Timer:
        """A timer of the step cut as the table says; raises `Rejected`."""
        ...
