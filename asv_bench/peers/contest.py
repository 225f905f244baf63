"""One workload and model with every engine: lives of each in rounds, and a row of figures each."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.output.record import REPOSITORY
from asv_bench.peers.catalog import KINDS, KVTRAIL
from asv_bench.peers.checkpoint import Checkpoint
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.samples import CommitUnusable, LifeSource, Reading, SampleFailed
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import AxisTable, MetricTable, SubjectTable, SubjectText
from asv_bench.workloads.named import Workload

WARMUPS = 2
"""Of a life: the first compiles, the second records what it replays."""
CONFIDENCE = 0.95
_METRICS = {
    "step_ms": MetricTable(path="step_ms", unit="ms"),
    "tokens_per_s": MetricTable(path="tokens_per_s", unit="tokens/s", better="higher"),
    "ttft_ms": MetricTable(path="ttft_ms", unit="ms"),
    "tpot_ms": MetricTable(path="tpot_ms", unit="ms"),
    "startup_s": MetricTable(path="startup_s", unit="s"),
}
_PLACE = "PEERS_FOLDER"


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
    readings
        By engine and metric: a value for each life.
    notes
        Why an engine is missing.
    rows
        The figures of each engine that ran, medians over its lives.
    """

    workload: Workload
    model: str
    checkpoint: Checkpoint
    interpreters: Mapping[str, str]
    windows: int
    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cells: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def _subject(self, folder: Path) -> DeclaredSubject:
        """The engines as labels of one subject, whose life is `peers.lives.life`.

        `folder` gets the task, the engines' interpreters and what is no figure.
        """
        life = '"$KVTRAIL_TREE/asv_bench/peers/lives/life.py"'
        table = SubjectTable(
            name=f"peers-{self.workload.name}",
            measure=f'exec "${_PLACE}/$KVTRAIL_LABEL/python" {life} "${_PLACE}/task.json"',
            timeout_s=3600.0,
            devices=1 if has_cuda_gpu() else None,
            # Nothing is to be fetched: the model is a folder. Nor is anything to be reported: vLLM
            # looks at the machine for that, in a thread beside what is measured.
            env={
                _PLACE: str(folder),
                "HF_HUB_OFFLINE": "1",
                "DO_NOT_TRACK": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        axis = AxisTable("labels", tuple(self.interpreters))
        return DeclaredSubject(REPOSITORY, SubjectText(table, metrics=_METRICS, axis=axis))

    def measure(self, rounds: int, on_life: Callable[[str], None]) -> None:
        """Measure so many lives of each engine, interleaved, after one that does not count.

        Rounds go back and forth. An engine that fails is left out from then on. `on_life` is told
        of each life before it begins.
        """
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            folder = Path(scratch)
            self._write_task(folder)
            subject = self._subject(folder)
            with subject.pairs() as lives:
                self._live(lives, rounds, on_life)
            self.cells = {name: cell.to_json() for name, cell in subject.cells.items()}
            self.rows = [
                self._row(name, folder, subject.others)
                for name in self.interpreters
                if name in self.readings
            ]

    def _live(self, lives: LifeSource, rounds: int, on_life: Callable[[str], None]) -> None:
        for name in self.interpreters:
            on_life(f"{name} on {self.workload.name}, first life")
            self._try(name, partial(lives.prepare, name))
        for number in range(rounds):
            engines = list(self.interpreters) if number % 2 == 0 else [*self.interpreters][::-1]
            for name in engines:
                on_life(f"{name} on {self.workload.name}, round {number + 1}")
                if name not in self._failed:
                    self._try(name, partial(self._keep, name, lives))

    @property
    def _failed(self) -> set[str]:
        return {note.partition(" on ")[0] for note in self.notes}

    def _try(self, name: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except (CommitUnusable, SampleFailed) as error:
            self.notes.append(f"{name} on {self.workload.name} is left out: {error.reason}")
            self.readings.pop(name, None)

    def _keep(self, name: str, lives: LifeSource) -> None:
        kept = self.readings.setdefault(name, {metric: [] for metric in _METRICS})
        for metric, reading in lives.life(name).items():
            kept[metric].append(reading)

    def _write_task(self, folder: Path) -> None:
        workload, checkpoint = self.workload, self.checkpoint
        for name, interpreter in self.interpreters.items():
            program = folder / name / "python"
            program.parent.mkdir()
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
            "facts": str(folder),
        }
        (folder / "task.json").write_text(json.dumps(task))

    def _row(
        self, name: str, folder: Path, others: Mapping[str, Mapping[str, list[float]]]
    ) -> dict[str, Any]:
        workload, checkpoint = self.workload, self.checkpoint
        values = {
            metric: [reading.value for reading in readings]
            for metric, readings in self.readings[name].items()
        }
        step_ms = statistics.median(values["step_ms"])
        floor = checkpoint.floor_ms(workload.resident, workload.mean_context)
        peaks = {
            metric: max(of_engine[name])
            for metric, of_engine in others.items()
            if name in of_engine
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
                for metric in _METRICS
                if metric != "step_ms"
            },
            "floor_ms": floor,
            "fraction_of_floor": None if floor is None else floor / step_ms,
            "peak_gpu_bytes": peaks.get("peak_gpu_bytes"),
            "peak_rss_bytes": peaks.get("peak_rss_bytes"),
            "lives": len(values["step_ms"]),
            **_facts(name, folder),
        }

    def _times(self, name: str) -> dict[str, Any] | None:
        """Step time over kvtrail's of the same round, with an interval; None without those."""
        ours, theirs = (
            [reading.value for reading in self.readings.get(one, {}).get("step_ms", ())]
            for one in (KVTRAIL, name)
        )
        if name == KVTRAIL or not ours or len(ours) != len(theirs):
            return None
        ratios = np.log(np.array(theirs) / np.array(ours))
        low, high, confidence = shift_interval(ratios, CONFIDENCE)
        return {
            "estimate": float(np.exp(hodges_lehmann(ratios))),
            "low": float(np.exp(low)),
            "high": float(np.exp(high)),
            "confidence": confidence,
        }

    def to_json(self) -> dict[str, Any]:
        """What the record keeps beside the rows."""
        return {
            "workload": asdict(self.workload),
            "model": self.model,
            "checkpoint": {**asdict(self.checkpoint), "folder": Path(self.checkpoint.folder).name},
            "cells": self.cells,
            "lives": {
                name: {
                    metric: [list(reading.samples) for reading in readings]
                    for metric, readings in of_engine.items()
                }
                for name, of_engine in self.readings.items()
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
