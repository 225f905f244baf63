"""`fixed` and `bisect --files` of kvtrail's own engine, through real processes of a toy history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_project import ToyProject, make_project, run_ruler

STEP = r"Toy\.track_step"


@pytest.fixture
def toy(tmp_path: Path) -> ToyProject:
    """Engines 1, 2 and 1.5; the second commit changes what is not measured, too."""
    project = make_project(tmp_path / "project", commits=1)
    (project.root / "kernels" / "harmless.py").write_text("")
    (project.root / "README.md").write_text("not measured\n")
    project.set_engine(2)
    project.commit("slower")
    project.set_engine(1.5)
    project.commit("less slow")
    return project


def ask(root: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    record = root.parent / "record.json"
    words = [*arguments, "-b", STEP, "--json", str(record)]
    done = run_ruler(root, *words)
    assert "Traceback" not in done.stderr, done.stderr
    text = " ".join((done.stdout + done.stderr).split())
    return done.returncode, text, json.loads(record.read_text())


@pytest.mark.thorough
def test_a_half_of_a_regression_of_the_engine_is_fixed(toy: ToyProject) -> None:
    code, said, record = ask(toy.root, "fixed", "HEAD~")
    assert "partly fixed, 42 % of the effect is back (42 % to 42 %)" in said
    assert code == 3
    [fixed] = record["results"]["fixed"]
    # In logarithms: of log 2, log 4/3 is back.
    assert fixed["back"]["value"] == pytest.approx(0.415, abs=0.001)


@pytest.mark.thorough
def test_the_file_of_the_engine_is_found_among_what_is_measured(toy: ToyProject) -> None:
    before = toy.git("status", "--porcelain"), toy.git("count-objects")
    code, said, record = ask(toy.root, "bisect", "HEAD~", "--files")
    assert "1 file is left out, being no part of what is measured" in said
    assert "engine/__init__.py makes it slower: +100.00 %" in said
    assert code == 3
    assert record["settings"]["files"] == ["engine/__init__.py", "kernels/harmless.py"]
    assert (toy.git("status", "--porcelain"), toy.git("count-objects")) == before
