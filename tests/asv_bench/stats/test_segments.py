"""The factors of devices, fitted to what several have measured."""

from __future__ import annotations

import math
import random

import pytest

from asv_bench.stats.segments import device_factors

TRUE = {"a": 1.007, "b": 0.994, "c": 1.001}


def test_devices_are_told_from_what_they_measured() -> None:
    chance = random.Random(5)
    readings: dict[str, dict[str, list[float]]] = {device: {} for device in TRUE}
    for number in range(60):
        level = 1.0 if number < 30 else 1.05
        for device in chance.sample(sorted(TRUE), 2):
            value = level * TRUE[device] * math.exp(chance.gauss(0, 0.001))
            readings[device].setdefault(str(number), []).append(value)
    readings["a"]["0"] = [3.0]  # as a disturbed life
    found = device_factors(readings)
    assert found == pytest.approx(TRUE, rel=0.001)


def test_a_device_that_shares_nothing_has_no_factor() -> None:
    assert device_factors({}) == {}
    assert device_factors({"a": {"x": [2.0]}, "b": {"y": [1.0]}}) == {}
    apart = {"alone": {"z": [7.0]}, "a": {"x": [2.0]}, "b": {"y": [1.0]}}
    found = device_factors({**apart, "both": {"x": [1.0], "y": [1.0]}})
    assert set(found) == {"a", "b", "both"}
    assert found["a"] / found["b"] == pytest.approx(2)
