"""One workload and model with every engine: its figures by life, and a row of them each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.errors import MeasurementFailed
from asv_bench.peers.catalog import KVTRAIL
from asv_bench.peers.checkpoint import Checkpoint
from asv_bench.process.samples import Reading
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.subjects.cell import Cell
from asv_bench.workloads.named import Workload

CONFIDENCE = 0.95
METRICS = ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms", "startup_s")


@dataclass(slots=True)
class Contest:
    """A workload and model that engines run in turns.

    Attributes
    ----------
    workload, model, checkpoint
        What they run.
    labels
        What lives of each engine are asked for by.
    readings
        By engine and round, of each metric.
    facts
        Settings and versions of each engine, and the tokens that its last life generated.
    tokens
        How those of each engine compare with a model in double precision.
    failed
        Why an engine is left out.
    """

    workload: Workload
    model: str
    checkpoint: Checkpoint
    labels: Mapping[str, str]
    readings: dict[str, dict[int, Mapping[str, Reading]]] = field(default_factory=dict)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tokens: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Why engines are missing, in sentences."""
        return [
            f"{name} on {self.workload.name} is left out: {reason}"
            for name, reason in self.failed.items()
        ]

    @property
    def ran(self) -> list[str]:
        """The engines that gave figures and never failed."""
        return [name for name in self.labels if name in self.readings.keys() - self.failed]

    def add(self, number: int, name: str, reading: Reading, lived: Mapping[str, Any]) -> None:
        """Take what a life of a round gave; `reading` is of the time to load."""
        cell = lived["cells"][self.workload.name]
        readings = {"startup_s": reading}
        try:
            for metric, windows in cell.get("figures", {}).items():
                value, samples = statistics.median(windows), tuple(windows)
                readings[metric] = replace(reading, benchmark=metric, value=value, samples=samples)
        except MeasurementFailed as error:
            cell = {"failed": str(error)}
        if "failed" in cell:
            self.failed.setdefault(name, cell["failed"])
            return
        self.readings.setdefault(name, {})[number] = readings
        self.facts[name] = {**lived, "token_ids": cell["token_ids"]}

    def values(self, name: str, metric: str) -> list[float]:
        """An engine's figures in the order of rounds: of each life, or of the windows of one."""
        of_rounds = [of_round[metric] for _, of_round in sorted(self.readings[name].items())]
        if len(of_rounds) == 1:
            return list(of_rounds[0].samples)
        return [reading.value for reading in of_rounds]

    def rows(self, others: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
        """The figures of each engine that ran, medians over its lives.

        `others` are figures besides those of readings, by metric and label.
        """
        return [self._row(name, others) for name in self.ran]

    def _row(self, name: str, others: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
        workload, checkpoint = self.workload, self.checkpoint
        values = {metric: self.values(name, metric) for metric in METRICS}
        step_ms = statistics.median(values["step_ms"])
        floor = checkpoint.floor_ms(workload.resident, workload.mean_context)
        label, facts = self.labels[name], self.facts[name]
        peaks = {
            metric: max(of_label[label]) for metric, of_label in others.items() if label in of_label
        }
        return {
            "workload": workload.name,
            "engine": name,
            "model": self.model,
            "dtype": checkpoint.dtype,
            "batch": workload.batch_size,
            "step_ms": step_ms,
            "step_ms_range": [min(values["step_ms"]), max(values["step_ms"])],
            "times": self._times(name),
            **{
                metric: statistics.median(values[metric])
                for metric in METRICS
                if metric != "step_ms"
            },
            "floor_ms": floor,
            "fraction_of_floor": None if floor is None else floor / step_ms,
            "peak_gpu_bytes": peaks.get("peak_gpu_bytes"),
            "peak_rss_bytes": peaks.get("peak_rss_bytes"),
            "lives": len(self.readings[name]),
            **{key: facts[key] for key in ("settings", "chosen", "versions")},
            "tokens": self.tokens.get(name),
        }

    def _times(self, name: str) -> dict[str, Any] | None:
        """Step time over kvtrail's of the same round, with an interval; None without those.

        Of one round it is the range over the windows of both lives, which has no confidence.
        """
        if name == KVTRAIL or KVTRAIL not in self.ran:
            return None
        both = self.readings[KVTRAIL].keys() & self.readings[name].keys()
        ours, theirs = (
            [self.readings[one][number]["step_ms"] for number in sorted(both)]
            for one in (KVTRAIL, name)
        )
        if not both:
            return None
        ratios = np.log([their.value / our.value for our, their in zip(ours, theirs, strict=True)])
        low, high, confidence = shift_interval(ratios, CONFIDENCE)
        if len(both) == 1:
            windows = np.log(np.divide.outer(theirs[0].samples, ours[0].samples))
            low, high, confidence = windows.min(), windows.max(), 0.0
        return {
            "estimate": float(np.exp(hodges_lehmann(ratios))),
            "low": float(np.exp(low)),
            "high": float(np.exp(high)),
            "confidence": confidence,
        }

    def to_json(self, cells: Mapping[str, Cell]) -> dict[str, Any]:
        """What the record keeps beside the rows; `cells` are what each label ran with."""
        return {
            "workload": asdict(self.workload),
            "model": self.model,
            "checkpoint": {**asdict(self.checkpoint), "folder": Path(self.checkpoint.folder).name},
            "cells": {
                name: cells[label].to_json()
                for name, label in self.labels.items()
                if label in cells
            },
            "lives": {
                name: [
                    {metric: reading.to_json() for metric, reading in of_round.items()}
                    for _, of_round in sorted(self.readings[name].items())
                ]
                for name in self.ran
            },
        }
