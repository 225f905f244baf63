"""The trials on crowded cores: what they plant is what their report says."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

TRIALS = Path(__file__).parents[2] / "reports" / "subjects" / "crowded" / "trials.py"


def test_branches_differ_in_nothing_but_the_planted_work(tmp_path: Path) -> None:
    folder = runpy.run_path(str(TRIALS))["make_repository"](tmp_path / "crowded")
    worked: dict[str, int] = {}
    for branch in ("base", "same", "plus-6", "plus-15"):
        subprocess.run(["git", "checkout", "-q", branch], cwd=folder, check=True)
        # It prints what its steps give, and each gives as much.
        ran = subprocess.run(
            [sys.executable, "bench.py"], cwd=folder, check=True, capture_output=True, text=True
        )
        worked[branch] = int(ran.stdout)
    base = worked["base"]
    assert [100 * worked[one] / base for one in worked] == [100, 100, 106, 115]
    differs = subprocess.run(
        ["git", "diff", "--numstat", "base", "same"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert differs.split() == ["1", "1", "bench.py"]
