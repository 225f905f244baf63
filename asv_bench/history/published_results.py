"""The copy of the results from which asv makes its own pages.

asv stops at a file that is not its own, and takes the mean over files of one commit. So the copy
leaves out faulty files, and has each figure only in the file of the session that counts.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from asv_bench.history.asv_results import Figure, Results, plain
from asv_bench.output.stored_json import decoded


def write_published(results: Results, source: Path, target: Path) -> None:
    """Make `target` a copy for asv's pages of what `read_results` read from `source`."""
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
