"""Workloads of one model with every engine: what lives read and gave, and a row of each engine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asv_bench.errors import MeasurementFailed
from asv_bench.history.life_rounds import Lived
from asv_bench.measure.samples import Reading
from asv_bench.peers.lives.life import KVTRAIL, Demand, PeerTask
from asv_bench.peers.model import Checkpoint, apart, checkpoint_in
from asv_bench.stats.paired import hodges_lehmann, shift_interval
from asv_bench.workloads.named import Workload

CONFIDENCE = 0.95
WARMUPS = 2
"""On a workload: the first compiles, the second records what it replays."""
TASK = "task.json"
STARTUP = "startup_s"
METRICS = ("step_ms", "tokens_per_s", "ttft_ms", "tpot_ms", STARTUP)


@dataclass(slots=True)
class Contest:
    """Engines that start once a round for all these workloads of a model.

    `engines` are their interpreters by name. `rounds` are what was measured: readings of the time
    to load, and what else lives told, by engine.
    """

    folder: Path
    workloads: Sequence[Workload]
    model: str
    dtype: str
    engines: Mapping[str, str]
    checkpoint: Checkpoint = field(init=False)
    rounds: dict[int, Lived] = field(init=False, default_factory=dict)
    # How they compare with a model in double precision, by workload and engine.
    tokens: Mapping[str, Mapping[str, Any]] = field(init=False, default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """What the lives of each engine are called: the folder and, behind a slash, the engine."""
        return {engine: f"{self.folder.name}/{engine}" for engine in self.engines}

    def prepare(self, checkpoint: Checkpoint, device: str, windows: int) -> None:
        """Put into the folder what lives read: the path of each interpreter, and the task."""
        self.checkpoint, workloads = checkpoint, self.workloads
        self.folder.mkdir()
        for name, interpreter in self.engines.items():
            (self.folder / name).write_text(interpreter)
        # Of each number the largest; None, which limits nothing, where any workload has it.
        settings = [one.engine_settings() for one in workloads]
        values = {key: [one[key] for one in settings] for key in settings[0]}
        task = PeerTask(
            checkpoint.folder,
            checkpoint.dtype,
            device,
            {
                one.name: Demand(
                    one.prompts(checkpoint.sizes["vocab_size"]),
                    [new for _, new in one.requests],
                    one.steps,
                )
                for one in workloads
            },
            max(one.batch_size for one in workloads),
            max(one.max_length for one in workloads),
            {key: None if None in of_all else max(of_all) for key, of_all in values.items()},
            WARMUPS,
            windows,
        )
        (self.folder / TASK).write_text(json.dumps(asdict(task)))

    def failure(self, workload: Workload, engine: str) -> str | None:
        """Why an engine is left out of a workload; None where it is not."""
        for _, lived in sorted(self.rounds.items()):
            cells = lived.facts.get(engine, {"cells": {}})["cells"]
            reason = lived.failed.get(engine) or cells.get(workload.name, {}).get("failed")
            if reason is not None:
                return str(reason)
        return None

    def notes(self) -> list[str]:
        """Why engines are missing, in sentences."""
        return [
            f"{engine} on {workload.name} is left out: {reason}"
            for workload in self.workloads
            for engine in self.engines
            if (reason := self.failure(workload, engine)) is not None
        ]

    def order(self, number: int) -> list[str]:
        """The engines of a round, back or forth, that have not failed on all workloads."""
        left = [
            engine
            for engine in self.engines
            if any(self.failure(one, engine) is None for one in self.workloads)
        ]
        return left if number % 2 == 0 else left[::-1]

    def compare_tokens(self) -> list[str]:
        """Set the tokens of all engines beside a model in double precision, or say why not."""
        generated: dict[str, dict[str, Any]] = {}
        for one in self._ran():
            ids = one.told[-1]["cells"][one.workload.name]["token_ids"]
            generated.setdefault(one.workload.name, {})[one.engine] = ids
        failing = "tokens were not compared with a model in fp64"
        file, task = (self.folder / name for name in ("tokens.json", TASK))
        try:
            self.tokens = apart(failing, "likelihoods", file, str(task), generated)
        except MeasurementFailed as error:
            return [str(error)]
        return []

    def _ran(self) -> list[Ran]:
        """Each workload and engine that gave figures and never failed."""
        rounds = [lived for _, lived in sorted(self.rounds.items())]
        return [
            Ran(workload, engine, rounds)
            for workload in self.workloads
            for engine in self.engines
            if rounds and self.failure(workload, engine) is None
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The figures of each engine that ran, medians over its lives."""
        ran = self._ran()
        ours = {one.workload.name: one for one in ran if one.engine == KVTRAIL}
        return [self._row(one, ours.get(one.workload.name)) for one in ran]

    def _row(self, one: Ran, ours: Ran | None) -> dict[str, Any]:
        workload, lives = one.workload, one.lives
        # Of a single life its windows are what there is.
        values = {
            metric: [life[metric].value for life in lives]
            if lives[1:]
            else lives[0][metric].samples
            for metric in METRICS
        }
        medians = {metric: statistics.median(values[metric]) for metric in METRICS}
        step_ms = medians.pop("step_ms")
        floor = self.checkpoint.floor_ms(workload.resident, workload.mean_context)
        return {
            "workload": workload.name,
            "engine": one.engine,
            "model": self.model,
            "dtype": self.checkpoint.dtype,
            "batch": workload.batch_size,
            "step_ms": step_ms,
            "step_ms_range": [min(values["step_ms"]), max(values["step_ms"])],
            "times": None if ours in (None, one) else _times(ours, one),
            **medians,
            "floor_ms": floor,
            "fraction_of_floor": None if floor is None else floor / step_ms,
            **{name: one.peak(name) for name in ("peak_gpu_bytes", "peak_rss_bytes")},
            "lives": len(lives),
            **{key: one.told[-1][key] for key in ("settings", "chosen", "versions")},
            "tokens": self.tokens.get(workload.name, {}).get(one.engine),
        }

    def samples(self) -> list[dict[str, Any]]:
        """What the record keeps of each workload beside the rows."""
        ran = self._ran()
        return [
            {
                "workload": asdict(workload),
                "model": self.model,
                "checkpoint": {
                    **asdict(self.checkpoint),
                    "folder": Path(self.checkpoint.folder).name,
                },
                "cells": {one.engine: cell for one in ran if (cell := one.told[-1]["cell"])},
                "lives": {
                    one.engine: [
                        {metric: reading.to_json() for metric, reading in life.items()}
                        for life in one.lives
                    ]
                    for one in ran
                    if one.workload is workload
                },
            }
            for workload in self.workloads
            if self.rounds
        ]


class Ran:
    """What lives of an engine `told`, and their readings of a workload by metric."""

    def __init__(self, workload: Workload, engine: str, rounds: Sequence[Lived]) -> None:
        self.workload = workload
        self.engine = engine
        self.told = [lived.facts[engine] for lived in rounds]
        self.lives: list[dict[str, Reading]] = []
        for lived in rounds:
            startup = lived.readings[engine]
            figures = lived.facts[engine]["cells"][workload.name]["figures"]
            read = {
                name: replace(
                    startup,
                    benchmark=name,
                    value=statistics.median(windows),
                    samples=tuple(windows),
                )
                for name, windows in figures.items()
            }
            self.lives.append({STARTUP: startup, **read})

    def peak(self, name: str) -> float | None:
        """The most memory that a life held; None where it is not known."""
        peaks = (told["peaks"] for told in self.told)
        return max((one[name] for one in peaks if name in one), default=None)


def _times(ours: Ran, theirs: Ran) -> dict[str, Any]:
    """Step time over kvtrail's of the same round, with an interval.

    Of one round it is the range over the windows of both lives, which has no confidence.
    """
    both = [
        (our["step_ms"], their["step_ms"])
        for our, their in zip(ours.lives, theirs.lives, strict=True)
    ]
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


def contests_of(
    works: Iterable[tuple[Workload, str, str]], engines: Mapping[str, str], folder: Path
) -> list[Contest]:
    """Contests below a folder, of workloads that are to be run with a model in a dtype.

    Of one model they share a start; where requests wait for others only those of one batch, as a
    larger batch makes no difference elsewhere.
    """
    groups: dict[tuple[str, str, int], list[Workload]] = {}
    for workload, model, dtype in works:
        batch = workload.batch_size if workload.waves > 1 else 0
        groups.setdefault((model, dtype, batch), []).append(workload)
    return [
        Contest(folder / f"contest-{number}", workloads, model, dtype, engines)
        for number, ((model, dtype, _), workloads) in enumerate(groups.items())
    ]


def put_on_disk(contests: Sequence[Contest], device: str, windows: int) -> None:
    """Prepare contests; each of their models is put on disk once, by a process of its own."""
    checkpoints: dict[tuple[str, str], Checkpoint] = {}
    for one in contests:
        key = one.model, one.dtype
        if key not in checkpoints:
            place = one.folder.with_name(f"model-{len(checkpoints)}")
            checkpoints[key] = checkpoint_in(place, *key, device)
        one.prepare(checkpoints[key], device, windows)
