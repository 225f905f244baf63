"""The identity guard: refuses to measure any engine but that of the commit under test.

asv files a figure under the commit that it believes to be installed. With `-E existing`, a stray
`PYTHONPATH` or an installed copy of the project it can be wrong, and measure the same code for many
commits.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.process.contract import COMMIT_MARKER, ENVIRONMENT_TYPE, MEASURED_PACKAGES


class WrongEngineError(RuntimeError):
    """The engine to be measured is not of the commit that asv would file the figure under."""


def commit_under_test() -> str:
    """The full hash that asv is about to file a figure under.

    Raises
    ------
    WrongEngineError
        If the benchmark does not run in this project's asv environment.
    """
    commit = os.environ.get("ASV_COMMIT")
    kind = os.environ.get("ASV_ENV_TYPE")
    if kind != ENVIRONMENT_TYPE or not commit:
        raise WrongEngineError(
            f"This benchmark runs in asv's {kind or 'existing'!r} environment, which cannot tell "
            f"which commit's engine it imports. Run asv without -E, so that it uses the "
            f"{ENVIRONMENT_TYPE!r} environment of asv.conf.json."
        )
    return commit


def check_identity() -> str:
    """Check that every measured package comes from the commit under test; return that commit.

    Packages that are imported already are judged by their file, the others by where they would be
    imported from.

    Raises
    ------
    WrongEngineError
        If one of them comes from elsewhere, or the environment holds another commit.
    SkipNotImplemented
        If the commit has no engine yet, which asv shows as a skipped benchmark.
    """
    commit = commit_under_test()
    checkout = Path(os.environ["ASV_ENV_DIR"]).resolve() / "commits" / commit
    marker = checkout / COMMIT_MARKER
    held = marker.read_text().strip() if marker.is_file() else "no commit"
    if held != commit:
        raise WrongEngineError(
            f"asv is measuring commit {commit[:8]}, but its environment holds {held[:9]}; "
            f"remove .asv/env and run again."
        )
    for package in MEASURED_PACKAGES:
        origin = _origin(package)
        expected = checkout / package
        if origin is not None and origin.parent != expected:
            if not expected.is_dir() and package not in sys.modules:
                raise SkipNotImplemented(f"commit {commit[:8]} has no {package!r} package")
            raise WrongEngineError(
                f"{package!r} comes from {origin.parent}, not from the checkout of commit "
                f"{commit[:8]}; uninstall that copy or take it off the search path."
            )
        if origin is None:
            raise SkipNotImplemented(f"commit {commit[:8]} has no {package!r} package")
    return commit


def _origin(package: str) -> Path | None:
    """The file of `package`, imported or to be imported; None where there is none."""
    module = sys.modules.get(package)
    if module is not None:
        return Path(module.__file__).resolve() if module.__file__ else None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve()
