"""Git keeps the measurements of the reference machines and nothing of a user's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from asv_bench.process.machine import REFERENCE_MACHINES

ROOT = Path(__file__).resolve().parents[2]
KEPT = {
    *(f"reports/asv/{name}/machine.json" for name in REFERENCE_MACHINES),
    *("reports/asv/benchmarks.json", "reports/headline.json"),
}
OWN = {
    *("reports/asv/own-laptop/machine.json", "reports/asv-worktree/h200/machine.json"),
    *("reports/html/index.html", "reports/profile/trace.json", "decode.ncu-rep"),
    *(".nox/stack/pyvenv.cfg", ".asv/env/x", ".bundle/run.sh", "engine/__pycache__/x.pyc"),
}


def test_the_reference_machines_are_kept_and_a_users_own_is_ignored(tmp_path: Path) -> None:
    """Asked in an empty repository, so that tracked files do not matter."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text("utf-8"))
    command = ["git", "-C", str(tmp_path), "check-ignore", *KEPT, *OWN]
    assert set(subprocess.run(command, capture_output=True, text=True).stdout.split()) == OWN
