"""Pairs and lives of a source, as tests ask for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asv_bench.measure.rounds import two_cells
from asv_bench.measure.samples import Metric, Pair, Reading, RoundSource


def pair_of_lives(
    source: RoundSource,
    base: str,
    head: str,
    *,
    head_first: bool = False,
    metrics: Collection[str] = (),
    device: str = "",
) -> Mapping[str, Pair]:
    """A pair of each metric, lower being better."""
    design, order = two_cells(base, head), (1, 0) if head_first else (0, 1)
    measured = source.round(design.cells, order, metrics, device)
    known = [Metric(name, "seconds") for name in measured.readings[0]]
    return design.pairs(known, measured)


def one_life(source: RoundSource, cell: str, device: str = "") -> Mapping[str, Reading]:
    """The readings of a life."""
    return source.round([cell], [0], (), device).readings[0]
