"""The shell of the tutorial does what the tutorial says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from documents import ROOT, blocks

PAGE = ROOT / "docs" / "tutorial.md"
ENGINE = Path("engine") / "engine.py"
WAIT = "        time.sleep(0.002)\n"


def shell(root: Path, text: str) -> str:
    """Run a block as it stands, and return what it printed."""
    roles, keys = ("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")
    identity = {f"GIT_{role}_{key}": "you" for role in roles for key in keys}
    return subprocess.run(
        ["bash", "-euc", text], cwd=root, env=identity, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository whose branch main has the engine's file."""
    (tmp_path / "engine").mkdir()
    shutil.copy(ROOT / ENGINE, tmp_path / ENGINE)
    shell(tmp_path, "git init -qb main && git add . && git commit -qm Begin")
    return tmp_path


def test_one_commit_of_eight_waits_and_the_repair_removes_it(clone: Path) -> None:
    _, hide, repair, clean_up = [one.text for one in blocks(PAGE) if one.language == "sh"]
    shell(clone, hide)
    subjects = shell(clone, "git log --format=%s main..").split("\n")
    assert (len(subjects) - 1, subjects[3]) == (8, "Tidy up the loop")
    culprit = shell(clone, "git diff -U1 HEAD~4 HEAD~3")
    assert f"     def _advance(self) -> None:\n+{WAIT}" in culprit
    assert [line[:2] for line in culprit.splitlines()].count("+ ") == 1
    compile((clone / ENGINE).read_text("utf-8"), ENGINE.name, "exec")
    assert "import time\n" in (clone / ENGINE).read_text("utf-8")
    shell(clone, repair)
    assert WAIT not in (clone / ENGINE).read_text("utf-8")
    shell(clone, clean_up)
    assert shell(clone, "git branch --format='%(refname:short)'") == "main\n"
