"""Rounds of peers: a life of every engine on the workloads of a model, one after another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asv_bench.history.life_rounds import Due, Lived
from asv_bench.measure.log import Entry, KeptRound, Log
from asv_bench.measure.samples import CommitUnusable, RoundSource, SampleFailed
from asv_bench.output.record import REPOSITORY
from asv_bench.peers.catalog import KINDS
from asv_bench.peers.contest import STARTUP, Contest
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.subject_file import AxisTable, MetricTable, SubjectTable, SubjectText

WARMUPS = 2
"""On a workload: the first compiles, the second records what it replays."""
_PLACE = "PEERS_FOLDER"


def peers_subject(labels: Sequence[str], folder: Path) -> DeclaredSubject:
    """Engines on models as labels of one subject, whose life is `peers.lives.life`.

    A label is a contest and an engine, with a slash between, and so is a folder below `folder`.
    """
    life = '"$KVTRAIL_TREE/asv_bench/peers/lives/life.py"'
    task = f'"${_PLACE}/${{KVTRAIL_LABEL%/*}}/task.json"'
    table = SubjectTable(
        name="peers",
        measure=f'exec "${_PLACE}/$KVTRAIL_LABEL/python" {life} {task}',
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
    axis = AxisTable("labels", tuple(labels))
    metrics = {STARTUP: MetricTable(path=STARTUP, unit="s")}
    return DeclaredSubject(REPOSITORY, SubjectText(table, metrics=metrics, axis=axis))


class KeptRounds(Log):
    """The log of a session; a round in which an engine failed is measured again."""

    def keep(self, entry: Entry) -> None:
        """See `Log`."""
        if not (isinstance(entry, KeptRound) and entry.failed):
            super().keep(entry)


class PeerRounds:
    """What lives in rounds, and where it goes (`LifeRounds.live`, `LivesTaken`).

    A round of a contest never leaves its device, and is measured again as a whole where that is
    lost. `on_life` is told, from the device's thread, which life begins.
    """

    def __init__(
        self,
        source: RoundSource,
        subject: DeclaredSubject,
        contests: Sequence[Contest],
        on_life: Callable[[str], None],
    ) -> None:
        self._source = source
        self._subject = subject
        self._contests = {one.name: one for one in contests}
        self._on_life = on_life

    def live(self, due: Due, device: str) -> Lived:
        """A life of each engine. One that fails is left out of the rounds that follow."""
        contest, failed = self._contests[due.commit], {}
        readings, facts = {}, {}
        for name in contest.order(due.round):
            self._on_life(f"{name} on {contest.model}, round {due.round + 1}")
            label = f"{contest.name}/{name}"
            try:
                readings[name] = self._source.round([label], device=device).readings[0][STARTUP]
            except (CommitUnusable, SampleFailed) as error:
                failed[name] = error.reason
                continue
            # The life named its file so.
            lived = contest.folder / f"{name}-{readings[name].value!r}.json"
            facts[name] = {**json.loads(lived.read_text()), **self._conditions(label)}
        return Lived(readings, failed, facts)

    def _conditions(self, label: str) -> dict[str, Any]:
        """What an engine ran with, and the most memory that it held until now."""
        others = list(self._subject.others.items())
        peaks = {metric: max(of_label[label]) for metric, of_label in others if label in of_label}
        cell = self._subject.cells.get(label)
        return {"cell": cell and cell.to_json(), "peaks": peaks}

    def take(self, due: Due, lived: Lived) -> None:
        """See `LivesTaken`."""
        self._contests[due.commit].take(due.round, lived)

    def give_up(self, commit: str, reason: str) -> None:
        """See `LivesTaken`; engines fail one by one."""


def write_task(contest: Contest, interpreters: Mapping[str, str], windows: int) -> None:
    """Put into a contest's folder what lives read, and programs that are the interpreters."""
    for name, interpreter in interpreters.items():
        program = contest.folder / name / "python"
        program.parent.mkdir(parents=True)
        # Not a link: an environment is known by where its interpreter lies.
        program.write_text(f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
        program.chmod(0o755)
    checkpoint, workloads = contest.checkpoint, contest.workloads
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
        "facts": str(contest.folder),
    }
    (contest.folder / "task.json").write_text(json.dumps(task))


def _largest(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each number the largest; None, which limits nothing, where any has it."""
    return {
        key: None
        if any(one[key] is None for one in settings)
        else max(one[key] for one in settings)
        for key in settings[0]
    }


def compare_tokens(contest: Contest) -> list[str]:
    """Set the tokens of all engines beside a model in double precision, or say why not."""
    task, asked, told = (contest.folder / f"{name}.json" for name in ("task", "tokens", "told"))
    generated: dict[str, dict[str, Any]] = {}
    for one in contest.workloads:
        for name in contest.ran(one):
            facts = contest.facts[name]
            ids = facts[max(facts)]["cells"][one.name]["token_ids"]
            generated.setdefault(one.name, {})[name] = ids
    asked.write_text(json.dumps(generated))
    words = (sys.executable, "-m", "asv_bench.peers.parity")
    done = run_apart([*words, *map(str, (task, asked, told))])
    if done.returncode:
        return [f"tokens were not compared with a model in fp64: {last_words(done.stderr, 1)}"]
    for workload, engines in json.loads(told.read_text()).items():
        contest.tokens |= {(workload, name): one for name, one in engines.items()}
    return []
