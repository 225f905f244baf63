"""One life of an engine on a workload: it loads, warms up, and runs so many windows.

Run as `python life.py TASK`, by the engine's own interpreter. Which engine it is stands behind the
slash of $KVTRAIL_LABEL; figures go to $KVTRAIL_RESULT. In a window all requests run twice: for one
new token each, which is the time to first token, and for all their tokens.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """What every engine does.

    Attributes
    ----------
    model
        A folder in Hugging Face's format.
    dtype, device
        Such as "bfloat16" and "cuda".
    prompts
        Token ids of each request.
    new_tokens
        Of each request; nothing ends it earlier.
    batch
        Requests that run at once.
    max_length
        Tokens of the longest request.
    steps
        Tokens of a sequence, for every filling of the batch.
    engine
        What the workload fixes of kvtrail's own engine.
    drivers
        The module of each engine.
    warmups, windows
        Runs that do not count, and runs that do.
    facts
        A folder that gets what is no figure: tokens, versions and settings of each engine.
    """

    model: str
    dtype: str
    device: str
    prompts: list[list[int]]
    new_tokens: list[int]
    batch: int
    max_length: int
    steps: int
    engine: dict[str, Any]
    drivers: dict[str, str]
    warmups: int
    windows: int
    facts: str


class Peer(Protocol):
    """An engine that has loaded the model.

    Attributes
    ----------
    settings
        What was chosen in it, in words: what a reader needs to judge whether it is fair.
    packages
        Distributions whose versions matter.
    unreported
        Tokens of each request that it generates without telling which.
    """

    settings: str
    packages: tuple[str, ...]
    unreported: int

    def generate(self, prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        """Run all requests, greedily, to their last token; the new ids of each."""
        ...


def live(label: str, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures, and facts beside them."""
    peer: Peer = importlib.import_module(task.drivers[label]).load(label, task)
    startup_s = _seconds_since_start()
    one_each = [1] * len(task.prompts)
    for _ in range(task.warmups):
        _timed(peer, task, one_each)
        _timed(peer, task, task.new_tokens)
    gc.collect()
    gc.freeze()
    first_s, whole_s = [], []
    ids: list[list[int]] = []
    for _ in range(task.windows):
        first_s.append(_timed(peer, task, one_each)[0])
        seconds, ids = _timed(peer, task, task.new_tokens)
        whole_s.append(seconds)
    tokens = sum(task.new_tokens)
    further = max(1, task.steps - task.steps // max(task.new_tokens))
    figures = {
        "step_ms": [1e3 * whole / task.steps for whole in whole_s],
        "tokens_per_s": [tokens / whole for whole in whole_s],
        "ttft_ms": [1e3 * first for first in first_s],
        "tpot_ms": [
            1e3 * (whole - first) / further for whole, first in zip(whole_s, first_s, strict=True)
        ],
        "startup_s": startup_s,
    }
    return figures, {
        "settings": peer.settings,
        "versions": _versions(("torch", "triton", *peer.packages)),
        "token_ids": ids,
    }


def _timed(peer: Peer, task: Task, new_tokens: list[int]) -> tuple[float, list[list[int]]]:
    started = time.perf_counter()
    ids = peer.generate(task.prompts, new_tokens)
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


def main() -> None:
    """Live once, as the engine that the environment names."""
    label = Path(os.environ["KVTRAIL_LABEL"]).name
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    figures, facts = live(label, task)
    Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps(figures))
    # In one piece: other lives of this engine may end at the same time.
    written = Path(task.facts, f"{label}-{uuid.uuid4().hex}")
    written.write_text(json.dumps(facts))
    written.replace(Path(task.facts, f"{label}.json"))


if __name__ == "__main__":
    main()
