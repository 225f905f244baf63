"""Filing asv's results of a session beside those of earlier ones, which stay as they are."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path

from asv_bench.history.asv_results import (
    BENCHMARKS,
    NOT_RESULTS,
    Results,
    read_benchmarks,
    read_results,
)

SESSION = f"{time.time_ns() // 1_000_000}-{os.getpid()}"
"""Of this process alone."""


def file_results(session: Path, results: Path) -> Results:
    """File a session's results directory in `results`, remove it, and return what was in it.

    A stored list of benchmarks that says the same stays as it is: asv's also has numbers of lines
    of the source, and the list is tracked by git.
    """
    measured = read_results(session)
    for path in sorted(session.rglob("*.json")):
        target = results / path.relative_to(session)
        if path.name == BENCHMARKS and read_benchmarks(path, []) == read_benchmarks(target, []):
            continue
        if path.name in NOT_RESULTS:
            copy_whole(path, target)
        elif path in measured.files:
            copy_whole(path, _free_name(target))
    shutil.rmtree(session, ignore_errors=True)
    return measured


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file so that a reader sees the old one or the new one, never half of it."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{SESSION}")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)


def _free_name(target: Path) -> Path:
    """`target`, or the first of its numbered names that no earlier session has taken."""
    numbered = (target.with_stem(f"{target.stem}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([target], numbered) if not path.exists())
