"""Figures as a stored history holds them, made up."""

from __future__ import annotations

import math

import numpy as np

from asv_bench.history.asv_results import Figure, Series

SERIES = Series("scheduler.Scheduler.track_step_time", (("model", "gpt2-tiny"),))


def hash_of(number: int) -> str:
    return f"{number:040x}"


def figures(levels, seed: int = 0, processes: int = 3, noise: float = 0.01) -> list[Figure]:
    """One figure a commit: its true time is exp(level) milliseconds."""
    draws = np.random.default_rng(seed)
    return [
        Figure(
            SERIES,
            "seconds",
            "m",
            hash_of(number),
            number,
            tuple(1e-3 * np.exp(level + noise * draws.standard_normal(processes))),
            1000 + number,
        )
        for number, level in enumerate(levels)
    ]


def steps(count: int, **places: float) -> list[float]:
    return [
        math.fsum(
            math.log1p(effect) for place, effect in places.items() if number >= int(place[1:])
        )
        for number in range(count)
    ]
