"""Commits whose code comes from one and the same place are named before the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository

BENCH = """
    import json, os, time, toylib
    time.sleep(0.05)  # so that its Python is seen beside other tests
    json.dump({"step": toylib.STEP}, open(os.environ["KVTRAIL_RESULT"], "w"))
    """
TABLES = """
    [subject]
    name = "toy"
    {setup}
    measure = "{measure}"
    env = {{ {env} }}

    [metrics.step]
    path = "step"
    """
INSTALL = 'setup = "cp -r $KVTRAIL_TREE/src/toylib {site}/"'
LINKED = 'setup = "echo $KVTRAIL_TREE/src > {site}/toylib.pth"'


@pytest.fixture
def python(tmp_path: Path) -> tuple[str, Path]:
    """A Python that both ends share, and the folder of its packages."""
    folder = tmp_path / "shared"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    return f"{folder}/bin/python", site


def made(root: Path, tables: str) -> DeclaredRepository:
    """Two commits of a library in src, which differ."""
    repository = DeclaredRepository.make(root, tables)
    (root / "pyproject.toml").write_text('[project]\nname = "ToyLib"\n')
    for step in (1, 2):
        for place in ("src/toylib/__init__.py", "tests/__init__.py", "bench/b.py"):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(f"STEP = {step}\n")
        (root / "bench" / "b.py").write_text(textwrap.dedent(BENCH))
        repository.toy.git("add", "src", "bench", "tests", "pyproject.toml")
        repository.commit("pass", f"step {step}")
    return repository


@pytest.mark.parametrize(
    ("setup", "env", "place"),
    [
        ("", 'PYTHONPATH = "{root}/src"', "{root}/src/toylib"),
        ("PTH", "", "{root}/src/toylib"),
        (LINKED, "", "/tree/src/toylib"),
        (INSTALL, "", "{site}/toylib"),
    ],
)
def test_ends_that_import_the_same_files_are_named(
    kvtrail,
    python: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setup: str,
    env: str,
    place: str,
) -> None:
    # Lives import from the user's own files here, and Python would leave bytecode beside them.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program, site = python
    root = tmp_path / "toy"
    if setup == "PTH":
        (site / "__editable__.toylib-1.pth").write_text(f"{root}/src\n")
        setup = ""
    where = {"root": root, "site": site}
    tables = TABLES.format(
        setup=setup.format(**where), env=env.format(**where), measure=f"{program} bench/b.py"
    )
    repository = made(root, tables)
    (site / "tests").mkdir()
    (site / "tests" / "__init__.py").write_text("")
    said = kvtrail(repository.toy, "compare", "HEAD~1", "HEAD", "--quick")
    [warning] = [one for one in said.record["warnings"] if "may run the same code" in one]
    base, head = (repository.toy.git("rev-parse", "--short=8", name) for name in ("HEAD~1", "HEAD"))
    both = base if "/tree/" in place else f"{base} and {head}"
    assert f"The Python of {both} imports toylib from " in warning
    assert place.format(**where) in warning
    shown, found = said.text.replace(" ", ""), warning.replace(" ", "")
    assert shown.index(found[:60]) < shown.index("step:" + said.verdicts["step"])
    assert str(root) not in str(said.record["results"]["cells"])


@pytest.mark.parametrize(
    ("setup", "env"),
    [
        ("", 'PYTHONPATH = "$KVTRAIL_TREE/src"'),
        ('setup = "cp -r src/toylib $KVTRAIL_OUT/"', 'PYTHONPATH = "$KVTRAIL_OUT"'),
    ],
)
def test_ends_that_import_their_own_files_are_not_named(
    kvtrail, python: tuple[str, Path], tmp_path: Path, setup: str, env: str
) -> None:
    program, site = python
    (site / "old.pth").write_text(f"{tmp_path}/toy/src{os.linesep}{tmp_path}/toy")
    tables = TABLES.format(setup=setup, env=env, measure=f"{program} bench/b.py")
    said = kvtrail(made(tmp_path / "toy", tables).toy, "compare", "HEAD~1", "HEAD", "--quick")
    assert said.verdicts == {"step": "slower"}, said.text
    assert not [one for one in said.record["warnings"] if "toylib" in one]
