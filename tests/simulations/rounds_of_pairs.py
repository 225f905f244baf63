"""Rounds of two cells by what is said of pairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from asv_bench.measure.samples import GpuConditions, Pair, Reading, Round

THROTTLED = GpuConditions(1.0, 1.0, 1.0, ("sw_thermal_slowdown",), 90, 1)
"""Both lives of a pair that is to be discarded have it."""


class RoundsOfPairs:
    """A `RoundSource` of rounds of two cells, of which a subclass says what a pair measures."""

    prepares_together = False

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """Of each benchmark, a pair in this order; one that is discarded is of a throttled GPU."""
        raise NotImplementedError

    def round(
        self,
        cells: Sequence[str],
        order: Sequence[int] | None = None,
        *,
        metrics: Collection[str] | None = None,
        device: str | None = None,
    ) -> Round:
        """See `RoundSource`."""
        base, head = cells
        order = tuple(order or (0, 1))
        pairs = self.pair(base, head, head_first=order == (1, 0), benchmarks=metrics, device=device)
        readings: tuple[dict[str, Reading], ...] = ({}, {})
        for name, pair in pairs.items():
            for of_cell, one in zip(readings, (pair.base, pair.head), strict=True):
                of_cell[name] = replace(one, gpu=THROTTLED) if pair.discarded else one
        return Round(order, readings)
