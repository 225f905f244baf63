"""Running a part of the ruler on the engine of another commit, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from asv_bench.errors import MeasurementFailed
from asv_bench.output.record import REPOSITORY
from asv_bench.process.borrowed_paths import borrowed_paths, search_path
from asv_bench.process.run_apart import last_words, run_apart
from asv_bench.run.settings import NVTX_VARIABLE


def ask_engine(
    folder: Path,
    module: str,
    task: str,
    variables: Mapping[str, str],
    *,
    ranges: bool = False,
) -> str:
    """What a module of today's ruler prints last, with the engine that lies in a folder.

    `ranges` turns the engine's NVTX ranges on. The folder comes first on the search path and the
    checkout last, so that the ruler is found and its engine is not.

    Raises MeasurementFailed with the last words of a process that failed.
    """
    told = {NVTX_VARIABLE: str(int(ranges)), **variables}
    told["PYTHONPATH"] = search_path([str(folder), *borrowed_paths(), str(REPOSITORY)])
    done = run_apart([sys.executable, "-P", "-m", module, task], told)
    if done.returncode or not done.stdout:
        raise MeasurementFailed(last_words(done.stdout + done.stderr))
    return done.stdout.rstrip("\n").rpartition("\n")[2]
