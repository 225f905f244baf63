"""The example for a repository of one's own runs as it is shown, on shorter work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "own-repository.md"
SHOWN = ("base", "head", "measuring", "wall_s:")
"""How the lines begin that are compared with those of the page, figures and hashes left out."""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Variables for a ruler that lies in no checkout, and for nobody's git."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "asv_bench", tmp_path / "site" / "asv_bench", ignore=ignored)
    roles, keys = ("AUTHOR", "COMMITTER"), ("NAME", "EMAIL")
    identity = {f"GIT_{role}_{key}": "you" for role in roles for key in keys}
    places = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "200"}
    return {**os.environ, **identity, **places, "XDG_STATE_HOME": str(tmp_path / "state")}


def without_figures(text: str) -> list[str]:
    """The lines that are compared."""
    plain = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b|[-+]?\d+(\.\d+)?", "N", text)
    return [line for line in plain.splitlines() if line.startswith(SHOWN)]


@pytest.mark.thorough
def test_the_example_is_slower_in_the_words_of_the_page(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    [make] = [one.text for one in blocks(PAGE) if one.language == "sh"]
    [shown] = [one.text for one in blocks(PAGE) if one.language == "console"]
    # Tenfold where the page has a tenth more, so that a busy machine changes no verdict.
    shorter = make.replace("sleep 0.22", "sleep 0.05").replace("sleep 0.2'", "sleep 0.005'")
    shorter = shorter.replace("220 ms", "N ms").replace("200 ms", "N ms")
    line, _, output = shown.partition("\n")
    typed = line.removeprefix("$ kvtrail compare ")
    ruler = f"{sys.executable} -m asv_bench compare --quick {typed}"
    done = subprocess.run(
        ["bash", "-euc", f"{shorter}\n{ruler}"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert without_figures(done.stdout) == without_figures(output)
    assert "record: .local/state/kvtrail/reports/runs/compare-" in output
    [_] = (tmp_path / "state" / "kvtrail" / "reports" / "runs").glob("compare-*.json")
