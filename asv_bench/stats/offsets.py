"""How much more one device reads than another, from what several have measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

_SWEEPS = 100
_SETTLED = 1e-9

Readings = Mapping[str, Mapping[str, Sequence[float]]]
"""By device and by what was measured: positive figures."""


def device_factors(readings: Readings) -> dict[str, float]:
    """What each device reads as a multiple of what all read in the geometric mean.

    Every figure is taken as the product of a factor of its device and of what was measured. Both
    are fitted by turns as medians of what the other leaves of the logarithms: median polish, Tukey,
    Exploratory Data Analysis, 1977, chapter 11.

    It has the devices of the largest group that have measured something in common, if only by way
    of others: no other can be compared with them. Empty where no two have.
    """
    devices = max((_linked(one, readings) for one in readings), key=len, default=set())
    if len(devices) < 2:
        return {}
    readings = {device: readings[device] for device in readings if device in devices}
    rows = [
        (device, subject, math.log(value))
        for device, of_device in readings.items()
        for subject, values in of_device.items()
        for value in values
    ]
    of_device = dict.fromkeys(readings, 0.0)
    for _ in range(_SWEEPS):
        of_subject = _medians((subject, log - of_device[device]) for device, subject, log in rows)
        left = _medians((device, log - of_subject[subject]) for device, subject, log in rows)
        mean = statistics.fmean(left.values())
        moved = max(abs(left[device] - mean - of_device[device]) for device in left)
        of_device = {device: log - mean for device, log in left.items()}
        if moved < _SETTLED:
            break
    return {device: math.exp(log) for device, log in of_device.items()}


def _medians(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for name, value in rows:
        by_name.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in by_name.items()}


def _linked(device: str, readings: Readings) -> set[str]:
    """It and all that have measured something in common with it, if only by way of others."""
    linked, subjects = {device}, {*readings[device]}
    while new := {one for one in readings.keys() - linked if subjects & readings[one].keys()}:
        linked |= new
        subjects.update(*(readings[one] for one in new))
    return linked
