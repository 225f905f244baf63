"""One workload and model with every engine: lives of each in rounds, and a row of figures each."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.peers.catalog import KINDS, KVTRAIL
from asv_bench.peers.checkpoint import Checkpoint
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.samples import Reading
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.subjects.cell import Cell
from asv_bench.subjects.subject_file import MetricTable
from asv_bench.workloads.named import Workload

WARMUPS = 2
"""Of a life: the first compiles, the second records what it replays."""
CONFIDENCE = 0.95
METRICS = {
    "step_ms": MetricTable(path="step_ms", unit="ms"),
    "tokens_per_s": MetricTable(path="tokens_per_s", unit="tokens/s", better="higher"),
    "ttft_ms": MetricTable(path="ttft_ms", unit="ms"),
    "tpot_ms": MetricTable(path="tpot_ms", unit="ms"),
    "startup_s": MetricTable(path="startup_s", unit="s"),
}


def label_of(workload: Workload, engine: str) -> str:
    """What lives of an engine on a workload are asked for by."""
    return f"{workload.name}/{engine}"


@dataclass(slots=True)
class Contest:
    """A workload and model that engines run in turns.

    Attributes
    ----------
    workload, model, checkpoint
        What they run.
    interpreters
        Of each engine, by name.
    windows
        Of a life.
    folder
        Gets the task, the engines' interpreters and what is no figure; wherever lives run, they
        see it.
    readings
        By engine and round, of each metric.
    failed
        Why an engine is left out.
    """

    workload: Workload
    model: str
    checkpoint: Checkpoint
    interpreters: Mapping[str, str]
    windows: int
    folder: Path
    readings: dict[str, dict[int, Mapping[str, Reading]]] = field(default_factory=dict)
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
        return [name for name in self.interpreters if name in self.readings.keys() - self.failed]

    def order(self, number: int) -> list[str]:
        """The engines of a round, numbered from 0 on. Rounds go back and forth."""
        engines = [name for name in self.interpreters if name not in self.failed]
        return engines if number % 2 == 0 else engines[::-1]

    def add(self, number: int, readings: Mapping[str, Mapping[str, Reading]]) -> None:
        """Take what a round gave by engine."""
        for name, of_engine in readings.items():
            self.readings.setdefault(name, {})[number] = of_engine

    def values(self, name: str, metric: str) -> list[float]:
        """An engine's figures in the order of rounds."""
        return [of_round[metric].value for _, of_round in sorted(self.readings[name].items())]

    def label(self, name: str) -> str:
        """What lives of an engine are asked for by."""
        return label_of(self.workload, name)

    def write_task(self) -> None:
        """Put into the folder what lives of the engines read."""
        workload, checkpoint = self.workload, self.checkpoint
        for name, interpreter in self.interpreters.items():
            program = self.folder / name / "python"
            program.parent.mkdir(parents=True)
            # Not a link: an environment is known by where its interpreter lies.
            program.write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
            program.chmod(0o755)
        prompts = workload.prompts(checkpoint.sizes["vocab_size"])
        task = {
            "model": checkpoint.folder,
            "dtype": checkpoint.dtype,
            "device": "cuda" if has_cuda_gpu() else "cpu",
            "prompts": prompts,
            "new_tokens": [*map(workload.new_length, range(workload.num_requests))],
            "batch": workload.batch_size,
            "max_length": workload.max_length,
            "steps": workload.steps,
            "engine": workload.engine_settings(),
            "drivers": {kind.name: kind.driver for kind in KINDS},
            "warmups": WARMUPS,
            "windows": self.windows,
            "facts": str(self.folder),
        }
        (self.folder / "task.json").write_text(json.dumps(task))

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
        peaks = {
            metric: max(of_label[self.label(name)])
            for metric, of_label in others.items()
            if self.label(name) in of_label
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
            "lives": len(values["step_ms"]),
            **_facts(name, self.folder),
        }

    def _times(self, name: str) -> dict[str, Any] | None:
        """Step time over kvtrail's of the same round, with an interval; None without those."""
        if name == KVTRAIL or KVTRAIL in self.failed:
            return None
        ours, theirs = (self.values(one, "step_ms") for one in (KVTRAIL, name))
        ratios = np.log(np.array(theirs) / np.array(ours))
        low, high, confidence = shift_interval(ratios, CONFIDENCE)
        return {
            "estimate": float(np.exp(hodges_lehmann(ratios))),
            "low": float(np.exp(low)),
            "high": float(np.exp(high)),
            "confidence": confidence,
        }

    def to_json(self, cells: Mapping[str, Cell]) -> dict[str, Any]:
        """What the record keeps beside the rows; `cells` are what each label ran with."""
        labels = {name: self.label(name) for name in self.interpreters}
        return {
            "workload": asdict(self.workload),
            "model": self.model,
            "checkpoint": {**asdict(self.checkpoint), "folder": Path(self.checkpoint.folder).name},
            "cells": {
                name: cells[label].to_json() for name, label in labels.items() if label in cells
            },
            "lives": {
                name: [
                    {metric: reading.to_json() for metric, reading in of_round.items()}
                    for _, of_round in sorted(self.readings[name].items())
                ]
                for name in self.ran
            },
        }


def _facts(name: str, folder: Path) -> dict[str, Any]:
    """Settings and versions, and how many requests got the same tokens as from kvtrail."""
    told, ours = (
        json.loads(path.read_text()) if path.exists() else {}
        for path in (folder / f"{one}.json" for one in (name, KVTRAIL))
    )
    same = _alike(ours["token_ids"], told["token_ids"]) if ours else None
    return {"settings": told["settings"], "versions": told["versions"], "tokens": same}


def _alike(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, int]:
    """Requests with the same ids, all of them, and the tokens before the earliest difference."""
    agreed = []
    for one, other in zip(ours, theirs, strict=True):
        # An engine may leave out the last token.
        length = min(len(one), len(other))
        differs = (place for place in range(length) if one[place] != other[place])
        agreed.append(next(differs, -1))
    different = [place for place in agreed if place >= 0]
    return {
        "same": len(agreed) - len(different),
        "requests": len(agreed),
        "first_difference": min(different, default=-1),
    }
