"""Workloads of one model with every engine: figures by life, and a row of each engine."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.errors import MeasurementFailed
from asv_bench.history.life_rounds import Lived
from asv_bench.measure.samples import Reading
from asv_bench.peers.catalog import KVTRAIL
from asv_bench.peers.checkpoint import Checkpoint, checkpoint_in
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.workloads.named import Workload

CONFIDENCE = 0.95
STARTUP = "startup_s"
METRICS = ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms", STARTUP)


@dataclass(slots=True)
class Contest:
    """Engines that start once a round for all these workloads of a model.

    Each life of an engine is known by the engine and its round: `facts` are what it told, and
    `readings`, by workload first, are of each metric. `failed` says, by workload and engine, why
    one is left out, and `tokens` how its tokens compare with a model in double precision.
    """

    folder: Path
    workloads: Sequence[Workload]
    model: str
    checkpoint: Checkpoint
    engines: Sequence[str]
    facts: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    readings: dict[tuple[str, str], dict[int, dict[str, Reading]]] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    tokens: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """That of its folder."""
        return self.folder.name

    @property
    def notes(self) -> list[str]:
        """Why engines are missing, in sentences."""
        return [
            f"{engine} on {workload} is left out: {reason}"
            for (workload, engine), reason in self.failed.items()
        ]

    def order(self, number: int) -> list[str]:
        """The engines of a round, back or forth, that have not failed on all workloads."""
        left = [
            engine
            for engine in self.engines
            if not all((one.name, engine) in self.failed for one in self.workloads)
        ]
        return left if number % 2 == 0 else left[::-1]

    def ran(self, workload: Workload) -> list[str]:
        """The engines that gave figures of a workload and never failed."""
        return [
            engine
            for engine in self.engines
            if (workload.name, engine) in self.readings.keys() - self.failed
        ]

    def take(self, number: int, lived: Lived) -> None:
        """Take what the lives of a round gave, and why others gave nothing."""
        for workload in self.workloads:
            for engine, reason in lived.failed.items():
                self.failed.setdefault((workload.name, engine), reason)
            for engine, facts in lived.facts.items():
                self.facts.setdefault(engine, {})[number] = facts
                key = workload.name, engine
                try:
                    readings = _readings(lived.readings[engine], facts["cells"][workload.name])
                except MeasurementFailed as error:
                    self.failed.setdefault(key, str(error))
                else:
                    self.readings.setdefault(key, {})[number] = readings

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each engine that ran, medians over its lives."""
        return [self._row(one, engine) for one in self.workloads for engine in self.ran(one)]

    def _row(self, workload: Workload, engine: str) -> dict[str, Any]:
        lives = [life for _, life in sorted(self.readings[workload.name, engine].items())]
        # Of a single life its windows are what there is.
        values = {
            metric: [one[metric].value for one in lives] if lives[1:] else lives[0][metric].samples
            for metric in METRICS
        }
        medians = {metric: statistics.median(values[metric]) for metric in METRICS}
        step_ms = medians.pop("step_ms")
        floor = self.checkpoint.floor_ms(workload.resident, workload.mean_context)
        told = self.facts[engine]
        peaks = [one["peaks"] for one in told.values()]
        last = told[max(told)]
        return {
            "workload": workload.name,
            "engine": engine,
            "model": self.model,
            "dtype": self.checkpoint.dtype,
            "batch": workload.batch_size,
            "step_ms": step_ms,
            "step_ms_range": [min(values["step_ms"]), max(values["step_ms"])],
            "times": self._times(workload, engine),
            **medians,
            "floor_ms": floor,
            "fraction_of_floor": None if floor is None else floor / step_ms,
            **{
                metric: max((one[metric] for one in peaks if metric in one), default=None)
                for metric in ("peak_gpu_bytes", "peak_rss_bytes")
            },
            "lives": len(lives),
            **{key: last[key] for key in ("settings", "chosen", "versions")},
            "tokens": self.tokens.get((workload.name, engine)),
        }

    def _times(self, workload: Workload, engine: str) -> dict[str, Any] | None:
        """Step time over kvtrail's of the same round, with an interval; None without those.

        Of one round it is the range over the windows of both lives, which has no confidence.
        """
        if engine == KVTRAIL or KVTRAIL not in self.ran(workload):
            return None
        ours, theirs = (self.readings[workload.name, one] for one in (KVTRAIL, engine))
        both = [
            (ours[number]["step_ms"], theirs[number]["step_ms"])
            for number in sorted(ours.keys() & theirs.keys())
        ]
        if not both:
            return None
        ratios = np.log([their.value / our.value for our, their in both])
        low, high, confidence = shift_interval(ratios, CONFIDENCE)
        if len(both) == 1:
            windows = np.log(np.divide.outer(both[0][1].samples, both[0][0].samples))
            low, high, confidence = windows.min(), windows.max(), 0.0
        return {
            "estimate": float(np.exp(hodges_lehmann(ratios))),
            "low": float(np.exp(low)),
            "high": float(np.exp(high)),
            "confidence": confidence,
        }

    def samples(self) -> list[dict[str, Any]]:
        """What the record keeps of each workload beside the rows."""
        checkpoint = {**asdict(self.checkpoint), "folder": Path(self.checkpoint.folder).name}
        last = {engine: told[max(told)]["cell"] for engine, told in self.facts.items()}
        cells = {engine: cell for engine, cell in last.items() if cell}
        return [
            {
                "workload": asdict(workload),
                "model": self.model,
                "checkpoint": checkpoint,
                "cells": cells,
                "lives": {
                    engine: [
                        {metric: reading.to_json() for metric, reading in life.items()}
                        for _, life in sorted(self.readings[workload.name, engine].items())
                    ]
                    for engine in self.ran(workload)
                },
            }
            for workload in self.workloads
        ]


def _readings(startup: Reading, given: Mapping[str, Any]) -> dict[str, Reading]:
    """Of each metric, from the reading of the time to load; MeasurementFailed without figures."""
    if "failed" in given:
        raise MeasurementFailed(given["failed"])
    return {STARTUP: startup} | {
        metric: replace(
            startup, benchmark=metric, value=statistics.median(windows), samples=tuple(windows)
        )
        for metric, windows in given["figures"].items()
    }


Start = tuple[str, str, int]
"""What an engine is started with: model, dtype, and a batch that must be exact; 0 where no request
has to wait for another, as a larger batch makes no difference then."""


def groups_of(works: Sequence[tuple[Workload, str, str]]) -> dict[Start, list[Workload]]:
    """Workloads that can share a start, of those to be run with a model in a dtype."""
    found: dict[Start, list[Workload]] = {}
    for workload, model, dtype in works:
        batch = workload.batch_size if workload.waves > 1 else 0
        found.setdefault((model, dtype, batch), []).append(workload)
    return found


def contests_in(
    folders: Sequence[Path],
    groups: Mapping[Start, Sequence[Workload]],
    engines: Iterable[str],
    device: str,
) -> list[Contest]:
    """A contest of each group in a folder of its own; each model is on disk once."""
    checkpoints: dict[tuple[str, str], Checkpoint] = {}
    contests = []
    for folder, ((model, dtype, _), workloads) in zip(folders, groups.items(), strict=True):
        if (model, dtype) not in checkpoints:
            place = folder.with_name(f"model-{len(checkpoints)}")
            checkpoints[model, dtype] = checkpoint_in(place, model, dtype, device)
        checkpoint = checkpoints[model, dtype]
        contests.append(Contest(folder, workloads, model, checkpoint, list(engines)))
    return contests
