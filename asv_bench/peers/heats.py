"""Contests of one model that share their lives: each engine starts once for all of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.peers.catalog import KINDS
from asv_bench.peers.checkpoint import Checkpoint
from asv_bench.peers.contest import Contest
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.process.samples import Reading
from asv_bench.workloads.named import Workload

WARMUPS = 2
"""On a workload: the first compiles, the second records what it replays."""


@dataclass(slots=True)
class Heat:
    """Workloads and a model that a life of each engine runs one after another.

    Attributes
    ----------
    contests
        One for each workload.
    interpreters
        Of each engine, by name.
    folder
        Gets the task, the engines' interpreters, and what lives give; wherever lives run, they see
        it.
    """

    contests: Sequence[Contest]
    interpreters: Mapping[str, str]
    folder: Path

    @classmethod
    def of(
        cls,
        workloads: Sequence[Workload],
        model: str,
        checkpoint: Checkpoint,
        interpreters: Mapping[str, str],
        folder: Path,
    ) -> Heat:
        """Contests that nothing has run yet."""
        labels = {name: f"{folder.name}/{name}" for name in interpreters}
        contests = [Contest(one, model, checkpoint, labels) for one in workloads]
        return cls(contests, interpreters, folder)

    @property
    def engines(self) -> list[str]:
        """Those that have not failed in every contest."""
        return [
            name
            for name in self.interpreters
            if not all(name in one.failed for one in self.contests)
        ]

    def order(self, number: int) -> list[str]:
        """The engines of a round, numbered from 0 on. Rounds go back and forth."""
        return self.engines if number % 2 == 0 else self.engines[::-1]

    def add(self, number: int, readings: Mapping[str, Reading], failed: Mapping[str, str]) -> None:
        """Take what the lives of a round gave, by engine, and why others gave nothing."""
        for contest in self.contests:
            contest.failed |= dict(failed) | contest.failed
            for name, reading in readings.items():
                # The life named its file so.
                lived = self.folder / f"{name}-{reading.value!r}.json"
                contest.add(number, name, reading, json.loads(lived.read_text()))

    def write_task(self, windows: int) -> None:
        """Put into the folder what lives of the engines read."""
        for name, interpreter in self.interpreters.items():
            program = self.folder / name / "python"
            program.parent.mkdir(parents=True)
            # Not a link: an environment is known by where its interpreter lies.
            program.write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
            program.chmod(0o755)
        checkpoint = self.contests[0].checkpoint
        workloads = [one.workload for one in self.contests]
        task = {
            "model": checkpoint.folder,
            "dtype": checkpoint.dtype,
            "device": "cuda" if has_cuda_gpu() else "cpu",
            "cells": {
                one.name: {
                    "prompts": one.prompts(checkpoint.sizes["vocab_size"]),
                    "new_tokens": [*map(one.new_length, range(one.num_requests))],
                    "steps": one.steps,
                }
                for one in workloads
            },
            "batch": max(one.batch_size for one in workloads),
            "max_length": max(one.max_length for one in workloads),
            "engine": _largest([one.engine_settings() for one in workloads]),
            "drivers": {name: kind.driver for name, kind in KINDS.items()},
            "warmups": WARMUPS,
            "windows": windows,
            "facts": str(self.folder),
        }
        (self.folder / "task.json").write_text(json.dumps(task))

    def compare_tokens(self) -> list[str]:
        """Set the tokens of all engines beside a model in double precision.

        Returns sentences: why that could not be done.
        """
        asked, told = self.folder / "tokens.json", self.folder / "told.json"
        generated = {
            one.workload.name: {name: one.facts[name]["token_ids"] for name in one.ran}
            for one in self.contests
        }
        asked.write_text(json.dumps(generated))
        words = (sys.executable, "-m", "asv_bench.peers.parity")
        done = run_apart([*words, str(self.folder / "task.json"), str(asked), str(told)])
        if done.returncode:
            return [f"tokens were not compared with a model in fp64: {last_words(done.stderr, 1)}"]
        answer = json.loads(told.read_text())
        for one in self.contests:
            one.tokens |= answer[one.workload.name]
        return []


def heats_of(
    tasks: Sequence[tuple[Workload, str, str]],
) -> dict[tuple[str, str, int], list[Workload]]:
    """Workloads by what an engine is started with: model, dtype, and a batch that must be exact.

    That is 0 where no request has to wait for another: a larger batch makes no difference then.
    """
    found: dict[tuple[str, str, int], list[Workload]] = {}
    for workload, model, dtype in tasks:
        batch = workload.batch_size if workload.waves > 1 else 0
        found.setdefault((model, dtype, batch), []).append(workload)
    return found


def _largest(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each number the largest; None, which limits nothing, where any has it."""
    return {
        key: None
        if any(one[key] is None for one in settings)
        else max(one[key] for one in settings)
        for key in settings[0]
    }
