"""The fixture `regression`: a test that fails where the working tree is slower than a commit.

Every run of pytest with kvtrail installed imports this module: it imports nothing that pytest does
not, and the comparison runs in a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

_OF_PYTEST = ("COV_CORE_", "COVERAGE_PROCESS_", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_")
"""Variables of this run: by the first, pytest-cov slows down each Python that is started."""


@pytest.fixture
def regression(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """Compare the working tree with a commit, and fail the test where that is slower.

    Further arguments are options of `kvtrail compare`, as in docs/how-to/regression-test.md. It
    returns `results` of the record.
    """

    def compare(
        base: str = "main", margin: float = 5, *, inconclusive: str = "skip", **options: Any
    ) -> dict[str, Any]:
        __tracebackhide__ = True
        if inconclusive not in ("skip", "warn", "fail"):
            raise ValueError(f"inconclusive is {inconclusive!r}; it takes skip, warn or fail.")
        if "subject" in options:
            options["subject"] = request.config.rootpath / options["subject"]
        record = tmp_path_factory.mktemp("kvtrail") / "record.json"
        words = [
            f"--{name}={one}"
            for name, value in {**options, "margin": margin, "json": record}.items()
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        # Workers of pytest-xdist have folders side by side, and measure one after the other.
        with open(tmp_path_factory.getbasetemp().parent / "kvtrail.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, said = _kvtrail(request.path.parent, "compare", *words, "--quiet", base, ".")
        if code not in (0, 3, 4, 6):
            raise RuntimeError(f"kvtrail compare ended with exit code {code}.\n{said}")
        results: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))["results"]
        said = f"{results['answer']}\n\n{said}"  # pytest's summary shows the first line
        if code in (3, 6) or (code == 4 and inconclusive == "fail"):
            pytest.fail(said, pytrace=False)
        if code == 4 and inconclusive == "skip":
            pytest.skip(said)
        if code == 4:
            warnings.warn(said, stacklevel=2)
        return results

    return compare


def _kvtrail(folder: os.PathLike[str], *words: str) -> tuple[int, str]:
    """The exit code of a command in a folder, and what it said."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith(_OF_PYTEST)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "asv_bench", *words],
        cwd=folder,
        env={**kept, "COLUMNS": str(shutil.get_terminal_size().columns)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches it once, from here
    )
    try:
        said, _ = process.communicate()
    except BaseException:  # also where a test takes too long: what it measures ends with it
        process.terminate()
        process.wait()
        raise
    return process.returncode, said.strip()
