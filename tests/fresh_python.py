"""Python in a process of its own, whose kernels are compiled, not interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def fresh_python(
    *arguments: str, search: Sequence[Path] = (ROOT,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in the first folder of `search`, from which it imports before the others.

    A test run under Triton's interpreter has defined its kernels as interpreted ones, and a process
    that knows of a GPU cannot pretend to have another.
    """
    inherited = {name: one for name, one in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(map(str, search))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=search[0],
        env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        timeout=240,
        check=False,
    )
