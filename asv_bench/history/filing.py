"""Filing asv's results of a session beside those of earlier ones, and copies of them for asv."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from asv_bench.history.asv_results import (
    BENCHMARKS,
    NOT_RESULTS,
    Figure,
    Results,
    plain,
    read_benchmarks,
    read_results,
)
from asv_bench.output.stored_json import decoded

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


def write_published(results: Results, source: Path, target: Path) -> None:
    """Make `target` a copy for asv's pages of what `read_results` read from `source`.

    asv stops at a file that is not its own, and takes the mean over files of one commit. So the
    copy leaves out faulty files, and has each figure only in the file of the session that counts.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if (source / "benchmarks.json").is_file():
        shutil.copy(source / "benchmarks.json", target)
    counted = set(map(id, results.figures))
    for path, figures in results.files.items():
        if path in results.faulty:
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        description = path.with_name("machine.json")
        if description.is_file():
            shutil.copy(description, copy.parent)
        content = decoded(path.read_bytes())
        _set_aside(content, [figure for figure in figures if id(figure) not in counted])
        copy.write_text(json.dumps(content), encoding="utf-8")


def _free_name(target: Path) -> Path:
    """`target`, or the first of its numbered names that no earlier session has taken."""
    numbered = (target.with_stem(f"{target.stem}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([target], numbered) if not path.exists())


def _set_aside(content: dict[str, Any], figures: Collection[Figure]) -> None:
    """Store figures the way asv stores parameters that it skipped."""
    for figure in figures:
        row = content["results"][figure.series.benchmark]
        columns = dict(zip(content["result_columns"], range(len(row)), strict=False))
        wanted = tuple(value for _, value in figure.series.params)
        # One that failed with all parameters has no values.
        for place, texts in enumerate(itertools.product(*row[columns["params"]])):
            if row[columns["result"]] and tuple(map(plain, texts)) == wanted:
                row[columns["result"]][place] = math.nan
