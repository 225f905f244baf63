"""Figures as a stored history holds them, made up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.history.asv_results import Figure, Series

SERIES = Series("scheduler.Scheduler.track_step_time", (("model", "gpt2-tiny"),))


def hash_of(number: int) -> str:
    return f"{number:040x}"


def figures(levels, seed: int = 0, processes: int = 3, noise: float = 0.01) -> list[Figure]:
    """One figure a commit: its true time is exp(level) milliseconds."""
    draws, made = np.random.default_rng(seed), []
    for number, level in enumerate(levels):
        samples = tuple((1e-3 * np.exp(level + noise * draws.standard_normal(processes))).tolist())
        made.append(Figure(SERIES, "seconds", "m", hash_of(number), number, samples, 1000 + number))
    return made


def steps(count: int, **places: float) -> list[float]:
    return [
        math.fsum(
            math.log1p(effect) for place, effect in places.items() if number >= int(place[1:])
        )
        for number in range(count)
    ]


def store_results(
    folder: Path,
    described: Mapping[str, tuple[str, list[str]]],
    results: Mapping[str, list[Any]],
    commit: str,
    date: int,
    columns: Sequence[str] = ("result", "params", "version", "started_at", "samples"),
    python: str | None = None,
    **facts: str,
) -> None:
    """The results of a commit in the folder of a machine, as asv writes them.

    `described` gives the unit and the parameters of each benchmark, all of version 1; `python` is
    a fact of the environment, `facts` are of the machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = {
        name: {"name": name, "unit": unit, "param_names": names, "version": "1", "params": []}
        for name, (unit, names) in described.items()
    }
    (folder.parent / "benchmarks.json").write_text(json.dumps({**listed, "version": 2}))
    machine = {"machine": folder.name, "version": 1, **facts}
    (folder / "machine.json").write_text(json.dumps(machine))
    content = {"commit_hash": commit, "date": date, "results": results, "version": 2}
    content |= {"python": python} if python else {}
    path = folder / f"{commit}-host-py{python or '3.11'}.json"
    path.write_text(json.dumps({**content, "result_columns": list(columns)}))
