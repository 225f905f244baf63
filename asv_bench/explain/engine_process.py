"""Running a part of the ruler on the engine of another commit, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from asv_bench.output.record import REPOSITORY
from asv_bench.process.borrowed_paths import borrowed_paths, search_path
from asv_bench.process.run_apart import run_apart


def run_on_engine(
    folder: Path, module: str, argument: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a module of today's ruler with the engine and the kernels that lie in a folder.

    The folder comes first on the search path and the checkout last, so that the ruler is found and
    its engine is not.
    """
    paths = search_path([str(folder), *borrowed_paths(), str(REPOSITORY)])
    command = [sys.executable, "-P", "-m", module, argument]
    return run_apart(command, {"PYTHONPATH": paths, **variables})
