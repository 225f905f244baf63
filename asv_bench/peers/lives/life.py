"""One life of an engine on a model: it loads, and on each workload warms up and runs its windows.

Run as `python life.py TASK`, by the engine's own interpreter. Which engine it is stands behind the
slash of $KVTRAIL_LABEL; the time to load goes to $KVTRAIL_RESULT, the rest to a file of the task's
folder. In a window all requests run twice: for one new token each, which is the time to first
token, and for all their tokens. The very first life tells which figures there are and loads
nothing.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asv_bench.peers.lives.drivers import Driver


@dataclass(frozen=True)
class Demand:
    """A workload: prompts as token ids, new tokens of each, which nothing ends earlier, and tokens
    of a sequence, for every filling of the batch."""

    prompts: list[list[int]]
    new_tokens: list[int]
    steps: int


@dataclass(frozen=True)
class PeerTask:
    """What every engine does with the model in a folder of Hugging Face's format.

    `cells` are workloads by name, with at most `batch` requests at once of at most `max_length`
    tokens. `engine` is what they fix of kvtrail's own engine, `drivers` has the class of each
    engine. The folder `facts` gets what each life gave.
    """

    model: str
    dtype: str
    device: str
    cells: dict[str, Demand]
    batch: int
    max_length: int
    engine: dict[str, Any]
    drivers: dict[str, str]
    warmups: int
    windows: int
    facts: str


def live(label: str, task: PeerTask) -> dict[str, Any]:
    """What an engine gave: seconds to start, figures and tokens of each workload, settings."""
    module, _, name = task.drivers[label].partition(".")
    peer: Driver = getattr(importlib.import_module(module), name)(label, task)
    startup_s = _seconds_since_start()
    cells: dict[str, dict[str, Any]] = {}
    for name, cell in task.cells.items():
        try:
            cells[name] = _measured(peer, cell, task)
        except SystemExit as refusal:  # of this workload alone
            cells[name] = {"failed": str(refusal)}
    return {
        "startup_s": startup_s,
        "cells": cells,
        "settings": peer.settings,
        "chosen": _chosen(peer),
        "versions": _versions(("torch", "triton", *peer.packages)),
    }


def _chosen(peer: Driver) -> dict[str, str]:
    found = {}
    for name, path in peer.choices.items():
        value: object = peer.engine
        for part in path.split("."):
            value = getattr(value, part, None)
        if value is not None:
            found[name] = str(getattr(value, "name", value))
    return found


def _measured(peer: Driver, cell: Demand, task: PeerTask) -> dict[str, Any]:
    """Windows of each metric on a workload, and the tokens of the last."""
    one_each = [1] * len(cell.prompts)
    for _ in range(task.warmups):
        _timed(peer, cell, one_each)
        _timed(peer, cell, cell.new_tokens)
    gc.collect()
    gc.freeze()
    first_s, whole_s = [], []
    ids: list[list[int]] = []
    for _ in range(task.windows):
        first_s.append(_timed(peer, cell, one_each)[0])
        seconds, ids = _timed(peer, cell, cell.new_tokens)
        whole_s.append(seconds)
    tokens = sum(cell.new_tokens)
    further = max(1, cell.steps - cell.steps // max(cell.new_tokens))
    figures = {
        "step_ms": [1e3 * whole / cell.steps for whole in whole_s],
        "tokens_per_s": [tokens / whole for whole in whole_s],
        "ttft_ms": [1e3 * first for first in first_s],
        "tpot_ms": [
            1e3 * (whole - first) / further for whole, first in zip(whole_s, first_s, strict=True)
        ],
    }
    return {"figures": figures, "token_ids": ids}


def _timed(peer: Driver, cell: Demand, new_tokens: list[int]) -> tuple[float, list[list[int]]]:
    started = time.perf_counter()
    ids = peer.generate(cell.prompts, new_tokens)
    seconds = time.perf_counter() - started
    for request, (generated, wanted) in enumerate(zip(ids, new_tokens, strict=True)):
        if len(generated) != wanted - peer.unreported:
            sys.exit(
                f"request {request} got {len(generated)} tokens where {wanted} were asked for; "
                f"this run measures something else."
            )
    return seconds, ids


def _seconds_since_start() -> float:
    """Of this process, its interpreter's start included."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those that this interpreter has."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_task(path: str) -> PeerTask:
    """The task in a file."""
    told = json.loads(Path(path).read_text())
    cells = {name: Demand(**cell) for name, cell in told.pop("cells").items()}
    return PeerTask(cells=cells, **told)


def main() -> None:
    """Live once, as the engine that the environment names."""
    label = Path(os.environ["KVTRAIL_LABEL"]).name
    task = read_task(sys.argv[1])
    begun = Path(task.facts, f"{label}-begun")
    startup_s = 1.0
    if begun.exists():
        facts = live(label, task)
        startup_s = facts["startup_s"]
        # Nothing else of a life reaches its reader, so this names the file.
        written = Path(task.facts, f"{label}-{startup_s!r}")
        written.write_text(json.dumps(facts))
        written.replace(written.with_name(f"{written.name}.json"))
    begun.touch()
    Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps({"startup_s": startup_s}))


if __name__ == "__main__":
    main()
