"""Controls: metrics that no change can move. Where one moves, something else changed as well."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.samples import Pair
from asv_bench.output.table import percentage

_FEWEST, _BESIDE = 12, 4
"""Lives in which a step can be seen, and those on either side of it."""


class ControlMoved(MeasurementFailed):
    """A search ends, as a control moved; the message says which, and how."""


def why_void(control: Comparison, pairs: Sequence[Pair], least: float) -> str:
    """How a control moved, by at least so much, and what follows; "" where it did not.

    It moves between the ends, by its own verdict, or in the middle of the session, from one life of
    a device to the next, whatever they are of.
    """
    moved = ""
    if control.verdict in (Verdict.SLOWER, Verdict.FASTER):
        moved = f"{percentage(control.effect or 0, 2, signed=True)} between the ends"
    for device in dict.fromkeys(pair.base.device for pair in pairs):
        lives = [one for pair in pairs for one in (pair.base, pair.head) if one.device == device]
        lives.sort(key=lambda one: one.started_at)
        step, place = _step([math.log(one.value) for one in lives])
        if not moved and abs(step) >= math.log1p(least):
            size = percentage(math.expm1(step), 2, signed=True)
            moved = f"{size} in the middle of the session, after {place} of {len(lives)} lives"
    if not moved:
        return ""
    return (
        f"{moved}. No change moves it, so the machine or what runs on it changed, and every "
        f"verdict of this session is void."
    )


def _step(values: Sequence[float]) -> tuple[float, int]:
    """The widest step from all values before a place to all after it, and the place.

    Both sides lie apart by at least as much as either is wide, which a drift does not bring about.
    """
    found = 0.0, 0
    for place in range(_BESIDE, len(values) - _BESIDE + 1) if len(values) >= _FEWEST else ():
        before, after = values[:place], values[place:]
        gap = max(min(after) - max(before), min(before) - max(after))
        shift = statistics.median(after) - statistics.median(before)
        if gap > 0 and gap >= max(np.ptp(before), np.ptp(after)) and abs(shift) > abs(found[0]):
            found = shift, place
    return found
