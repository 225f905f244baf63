"""Pairs of a commit with itself, as records hold them."""

from __future__ import annotations

from typing import Any

import numpy as np


def pairs_with_itself(
    pairs: int, *, deviation: float = 0.003, devices: int = 2, benchmark: str = "b"
) -> list[dict[str, Any]]:
    """As many pairs on each device, whose levels differ; processes begin a second apart."""
    random = np.random.default_rng(11)
    stored = []
    for device in range(devices):
        values = np.exp(device + random.normal(0, deviation, (pairs, 2)))
        for number in range(pairs):
            stored.append(_pair(number, values[number].tolist(), f"device {device}", benchmark))
    return stored


def _pair(number: int, in_order: list[float], device: str, benchmark: str) -> dict[str, Any]:
    head_first = number % 4 in (1, 2)
    readings = [
        {"commit": "a" * 40, "device": device, "value": value, "started_at": 2.0 * number + place}
        for place, value in enumerate(in_order)
    ]
    base, head = reversed(readings) if head_first else readings
    told = {"benchmark": benchmark, "head_first": head_first, "discarded": None}
    return {**told, "base": base, "head": head}
