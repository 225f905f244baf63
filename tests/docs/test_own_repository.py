"""The tutorial for a repository of one's own goes as it is shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "own-repository.md"
SHOWN = ("base", "head", "measuring", "bisecting", "step_ms: slower", "first slower commit")
"""How the lines begin that are compared with those of the page, figures and hashes left out."""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Variables for a ruler that lies in no checkout, and for nobody's git."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "asv_bench", tmp_path / "site" / "asv_bench", ignore=ignored)
    roles, keys = ("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")
    identity = {f"GIT_{role}_{key}": "You" for role in roles for key in keys}
    places = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "200"}
    return {**os.environ, **identity, **places, "XDG_STATE_HOME": str(tmp_path / "state")}


def without_figures(text: str) -> list[str]:
    """The lines that are compared."""
    plain = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b|[-+]?\d+(\.\d+)?", "N", text)
    return [line for line in plain.splitlines() if line.startswith(SHOWN)]


@pytest.mark.thorough
def test_the_tutorial_goes_as_the_page_says(tmp_path: Path, installed: dict[str, str]) -> None:
    make, declare, *_ = [one.text for one in blocks(PAGE) if one.language == "sh"]
    begin, compare, bisect = [one.text for one in blocks(PAGE) if one.language == "console"]
    ruler = tmp_path / "bin" / "kvtrail"
    ruler.parent.mkdir()
    ruler.write_text(f'#!/bin/sh\nexec {sys.executable} -m asv_bench "$@"\n')
    ruler.chmod(0o755)
    variables = {**installed, "PATH": f"{ruler.parent}:{os.environ['PATH']}"}

    def run(text: str, folder: Path, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    toy = tmp_path / "toy"
    # Threefold where the page has half as much again, so that a busy machine changes no verdict.
    run(make.replace("0.005", "0.002").replace("0.008", "0.006"), tmp_path)
    assert run(typed(begin), toy) == shown(begin)
    text = (toy / "kvtrail.toml").read_text("utf-8")
    [written] = [one.text for one in blocks(PAGE) if 'name = "toy"' in one.text]
    assert tomllib.loads(text) == tomllib.loads(written)
    run(declare, toy)
    for block in (compare, bisect):
        said = run(typed(block), toy, code=3)
        assert without_figures(said) == without_figures(shown(block))
    assert "Tidy up the step" in said.partition("first slower commit:")[2].splitlines()[0]
    assert len(list((tmp_path / "state" / "kvtrail" / "reports" / "runs").iterdir())) == 2


def typed(block: str) -> str:
    """The command of a block of console."""
    return block.partition("\n")[0].removeprefix("$ ")


def shown(block: str) -> str:
    """What it printed, of which a page may leave out parts."""
    return block.partition("\n")[2]
