"""Python in a process of its own, whose kernels are compiled, not interpreted."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]


def fresh_python(
    *arguments: str, search: Sequence[Path] = (ROOT,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in the first folder of `search`, from which it imports before the others.

    A test run under Triton's interpreter has defined its kernels as interpreted ones, and a process
    that knows of a GPU cannot pretend to have another.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=search[0],
        env=_environment(search) | environment,
        timeout=240,
        check=False,
    )


def forked_python(
    code: str, *arguments: str, search: Sequence[Path] = (ROOT,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `fresh_python("-c", code, ...)`, from a process that has imported torch and Triton.

    Not for what these read from the environment when they are imported.
    """
    server = _server()
    if server.stdin is None or server.stdout is None:
        raise RuntimeError("the server was started without pipes")
    with TemporaryDirectory() as folder:
        stdout, stderr = (Path(folder, name) for name in ("stdout", "stderr"))
        request = {
            "code": code,
            "arguments": arguments,
            "folder": str(search[0]),
            "environment": _environment(search) | environment,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        exit_code = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            ["python", "-c", code, *arguments], exit_code, stdout.read_text(), stderr.read_text()
        )


def planted(folder: Path, file: str, before: str, after: str) -> Path:
    """A copy of the engine in `folder`, with one change of a text that stands there once."""
    for package in ("engine", "kernels"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    source = folder / file
    text = source.read_text()
    if text.count(before) != 1:
        raise ValueError(f"{file} no longer holds {before!r} once")
    source.write_text(text.replace(before, after))
    return folder


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that forks, which ends with this one."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "forking_server.py")],
        cwd=ROOT,
        env=_environment((ROOT,)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C for a test's own processes is not for it.
        start_new_session=True,
    )


def _environment(search: Sequence[Path]) -> dict[str, str]:
    inherited = {name: one for name, one in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(map(str, search))
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
