"""What a GPU's clocks say of two commits.

A commit can change the clock, by drawing more power or by leaving the GPU idle. Its pairs are
judged all the same, since discarding them would hide what it does
(`process.gpu_watch.why_discarded`). But whoever reads the verdict must know that the clock has a
part in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from asv_bench.measure.samples import GpuConditions, Pair
from asv_bench.output.table import percentage
from asv_bench.process.gpu_watch import throttling
from asv_bench.stats.paired import hodges_lehmann, location_p, smallest_p

LEAST = 0.005
"""Relative difference of clocks that is worth a sentence; a step of the clock is somewhat more."""
_LEVEL = 0.01
_FEWEST = 4


def clock_findings(pairs: Iterable[Pair]) -> list[str]:
    """Sentences on clocks and throttling that differ between the commits of pairs.

    `pairs` may be of several benchmarks, which share processes.
    """
    seen = {
        (pair.base.device, pair.base.started_at, pair.head.started_at): (
            pair.base.gpu,
            pair.head.gpu,
        )
        for pair in pairs
    }
    both = [(base, head) for base, head in seen.values() if base is not None and head is not None]
    if len(both) < _FEWEST:
        return []
    return [*_clocks(both), *_throttling(both)]


def _clocks(both: Sequence[tuple[GpuConditions, GpuConditions]]) -> list[str]:
    shifts = [math.log(head.sm_clock_mhz / base.sm_clock_mhz) for base, head in both]
    shift = math.expm1(float(hodges_lehmann(shifts)))
    if abs(shift) < LEAST or not _lie_on_one_side(shifts):
        return []
    of_base, of_head = (
        float(np.median([conditions.sm_clock_mhz for conditions in side]))
        for side in zip(*both, strict=True)
    )
    return [
        f"The GPU's clock differs between the commits: {of_base:.0f} MHz for the base, "
        f"{of_head:.0f} MHz for the head ({percentage(shift, 1, signed=True)} in a typical one of "
        f"{len(both)} pairs). This is part of the difference that was measured."
    ]


def _throttling(both: Sequence[tuple[GpuConditions, GpuConditions]]) -> list[str]:
    held = [
        [bool(throttling(conditions)) for conditions in side] for side in zip(*both, strict=True)
    ]
    shifts = [float(head) - float(base) for base, head in zip(*held, strict=True)]
    if not _lie_on_one_side(shifts):
        return []
    of_base, of_head = map(sum, held)
    return [
        f"The GPU was throttled while {of_head} of {len(both)} processes of the head ran, and "
        f"{of_base} of the base. This is part of the difference that was measured."
    ]


def _lie_on_one_side(shifts: Sequence[float]) -> bool:
    """Whether they do by more than chance; of few, all of them."""
    return float(location_p(shifts, "two-sided")) <= max(_LEVEL, smallest_p(len(shifts)))
