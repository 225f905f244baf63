"""Git keeps the measurements of the reference machines and nothing of a user's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asv_bench.process.machine import REFERENCE_MACHINES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ignored(tmp_path: Path):
    """Ask git in an empty repository with this .gitignore, so that tracked files do not matter."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text("utf-8"))

    def ask(path: str) -> bool:
        command = ["git", "-C", str(tmp_path), "check-ignore", "-q", path]
        return subprocess.run(command, check=False).returncode == 0

    return ask


@pytest.mark.parametrize("machine", sorted(REFERENCE_MACHINES))
def test_reference_machines_are_kept(ignored, machine):
    assert not ignored(f"reports/asv/{machine}/machine.json")
    assert not ignored(f"reports/asv/{machine}/abc-host.json")


@pytest.mark.parametrize("path", ["benchmarks.json"])
def test_what_every_machine_shares_is_kept(ignored, path):
    assert not ignored(f"reports/asv/{path}")


@pytest.mark.parametrize(
    "path",
    [
        "reports/asv/own-laptop/machine.json",
        "reports/asv-worktree/h200/machine.json",
        "reports/html/index.html",
        "reports/profile/trace.json",
        "reports/profile/decode.nsys-rep",
        "decode.ncu-rep",
        ".nox/stack/pyvenv.cfg",
        ".asv/env/x",
        ".bundle/run.sh",
        "engine/__pycache__/x.pyc",
    ],
)
def test_a_users_own_is_ignored(ignored, path):
    assert ignored(path)


def test_headline_is_kept(ignored):
    assert not ignored("reports/headline.json")
