"""What a life ran with: the Python that did its work, its packages, and modules from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, noisy, seen

from asv_bench.measure.processes import Processes
from asv_bench.measure.software import Software, software_of
from asv_bench.measure.trees import Laid
from asv_bench.measure.watched import Python

SEEN = seen("")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The packages of a virtual environment: one, and a line that makes its Python complain."""
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"]
    subprocess.run(command, check=True)
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    info = packages / "toylib-4.55.dist-info" / "METADATA"
    info.parent.mkdir()
    info.write_text("Metadata-Version: 2.1\nName: toylib\nVersion: 4.55\n")
    (packages / "broken.pth").write_text("import nothing_of_this_name\n")
    return packages


def cell(made: DeclaredRepository, measure: str = "") -> Software:
    """What HEAD ran with, measured so."""
    if measure:
        made.declare(f"[subject]\nname = 'toy'\nmeasure = '''{measure}'''")
    subject = made.subject
    with subject.pairs() as source:
        source.prepare(subject.resolve("HEAD").hash)
        [found] = subject.cells.values()
    return found


@pytest.mark.parametrize(
    "line",
    [
        "cd sub && python ../bench.py",
        "env A=1 taskset -c {core} python bench.py",
        "bash -c 'time python bench.py'",
        "nice timeout 60 python bench.py; true",
        "cd sub && sh up.sh",
        "cd sub && {env}/bin/python3 ../bench.py",
        "python -c 'import os; os.system(\"{other} -c 0\")' && python bench.py",
    ],
)
def test_the_python_that_runs_is_asked_for_its_packages(
    declared, site: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    env = site.parents[2]
    made = declared("", f"#!/usr/bin/env python3\n{SEEN}")
    (made.root / "bench.py").chmod(0o755)
    made.git("commit", "-qam", "a program")
    made.change("more", {"sub/up.sh": "exec ../bench.py", "json.py": "raise SystemExit"})
    monkeypatch.setenv("PATH", f"{env / 'bin'}{os.pathsep}{os.environ['PATH']}")
    core = min(os.sched_getaffinity(0))
    found = cell(made, line.format(core=core, other=sys.executable, env=env))
    assert Path(found.interpreter or "").parent == env / "bin"
    assert found.packages == {"toylib": "4.55"}


@pytest.mark.parametrize("script", ["#!\nexit 0", ": python bench.py"])
def test_without_a_python_there_are_no_packages(declared, script: str) -> None:
    made = declared("", f"{script}\n")
    (made.root / "bench.py").chmod(0o755)
    made.git("commit", "-qam", "a program")
    found = cell(made, "./bench.py here")
    assert (found.interpreter, found.packages) == (None, {})


TABLES = """
    [subject]
    name = "tinytext"
    setup = "sh setup.sh"
    measure = "python bench.py"
    env = { PYTHONPATH = "$KVTRAIL_OUT:$KVTRAIL_TREE" }

    [metrics.step_ms]
    path = "step_ms"
    """
SETUP = r"""
version=$(cat version)
note() {
    mkdir -p "$1"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$2" "$3" > "$1/$4"
}
note "$KVTRAIL_OUT/dep.dist-info" dep $version METADATA
"""
OWN = 'note "$KVTRAIL_OUT/tt.dist-info" Tiny_Text 0.$version METADATA\n'
NOTED = """printf '{"url": "file://%s/python", "dir_info": {}}' "$KVTRAIL_TREE" """


def tinytext(folder: Path, own: str, files: dict[str, str]) -> DeclaredRepository:
    """Two commits of a project, each with its own version and with another version of `dep`."""
    made = DeclaredRepository.make(folder / "toy", TABLES)
    for version, figure in enumerate((5.0, 5.3), 1):
        texts = {**files, "setup.sh": SETUP + own, "version": str(version)}
        made.change(f"version {version}", {**texts, "bench.py": seen(noisy("step_ms", figure))})
    return made


@pytest.mark.usefixtures("kvtrail", "asks_for_packages")
@pytest.mark.parametrize(
    ("own", "files"),
    [
        (OWN, {"pyproject.toml": '[project]\nname = "tiny-text"\n'}),
        (OWN, {"pyproject.toml": '[tool.poetry]\nname = "tiny.text"\n'}),
        (OWN, {"setup.cfg": "[metadata]\nname = tiny_text\n"}),
        (OWN, {"setup.py": "from setuptools import setup\nsetup(\n    name='tiny-text')\n"}),
        ("note tt.egg-info tiny-text 0.$version PKG-INFO", {}),
    ],
    ids=["pyproject", "poetry", "setup.cfg", "setup.py", "in the tree"],
)
def test_what_is_made_of_the_commit_is_no_package_that_it_ran_with(
    tmp_path: Path, own: str, files: dict[str, str]
) -> None:
    packages = cell(tinytext(tmp_path, own, files)).packages
    assert packages["dep"] == "2"
    assert not [name for name in packages if "tiny" in name.lower()]


@pytest.mark.usefixtures("asks_for_packages")
def test_compare_and_explain_name_the_dependency_and_not_the_package_under_test(
    kvtrail, tmp_path: Path
) -> None:
    noted = f'{OWN}{NOTED} > "$KVTRAIL_OUT/tt.dist-info/direct_url.json"'
    made = tinytext(tmp_path, noted, {})
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--quick")
    assert "Base and head ran with other packages: dep 1 → 2." in said.text
    cell = said.record["results"]["cells"][made.git("rev-parse", "HEAD")]
    assert cell["packages"]["dep"] == "2"
    assert cell["variables"]["PYTHONPATH"] == "$KVTRAIL_OUT:$KVTRAIL_TREE"
    said = kvtrail(made, "explain", "HEAD~1", "HEAD")
    [cause] = said.record["results"]["causes"]
    assert cause["sentence"] == "Packages have other versions: dep 1 → 2"


IMPORTS = """
    [subject]
    name = "toy"
    setup = "{setup}"
    measure = "{site.parent.parent.parent}/bin/python bench/b.py"
    env = {{ PYTHONPATH = "{paths}", PYTHONDONTWRITEBYTECODE = "1" }}

    [metrics.step]
    path = "step"
    """
BENCH = f"""{SEEN}
import json, os, toylib
json.dump({{"step": toylib.STEP}}, open(os.environ["KVTRAIL_RESULT"], "w"))
"""


@pytest.mark.usefixtures("asks_for_packages")
@pytest.mark.parametrize(
    ("setup", "paths", "place"),
    [
        # Ends that import the same files are named,
        ("true", "{root}/src", "{root}/src/toylib"),
        ("true", "", "{root}/src/toylib"),
        ("echo $KVTRAIL_TREE/src > {site}/toylib.pth", "", "/tree/src/toylib"),
        ("cp -r $KVTRAIL_TREE/src/toylib {site}/", "", "{site}/toylib"),
        # and those that import their own are not.
        ("true", "$KVTRAIL_TREE/src", ""),
        ("cp -r src/toylib $KVTRAIL_OUT/", "$KVTRAIL_OUT", ""),
    ],
)
def test_commits_whose_code_comes_from_one_place_are_named_before_the_verdict(
    kvtrail, site: Path, tmp_path: Path, setup: str, paths: str, place: str
) -> None:
    root = tmp_path / "toy"
    if "{site}" not in setup and "{root}" not in paths:
        (site / "__editable__.toylib-1.pth").write_text(f"{root}/src\n")
    where = {"root": root, "site": site}
    keys = {"setup": setup.format(**where), "paths": paths.format(**where)}
    made = DeclaredRepository.make(root, IMPORTS.format(**keys, site=site))
    texts = {"pyproject.toml": '[project]\nname = "ToyLib"\n', "bench/b.py": BENCH}
    for step in (1, 2):
        library = dict.fromkeys(("src/toylib/__init__.py", "tests/__init__.py"), f"STEP = {step}\n")
        made.change(f"step {step}", {**texts, **library})
    (site / "tests").mkdir()
    (site / "tests" / "__init__.py").write_text("")
    said = kvtrail(made, "compare", "HEAD~1", "HEAD", "--quick")
    warnings = [one for one in said.record["warnings"] if "toylib" in one]
    if not place:
        assert (said.verdicts, warnings) == ({"step": "slower"}, [])
        return
    [warning] = warnings
    base, head = (made.git("rev-parse", "--short=8", name) for name in ("HEAD~1", "HEAD"))
    both = base if "/tree/" in place else f"{base} and {head}"
    assert f"The Python of {both} imports toylib from " in warning
    assert place.format(**where) in warning
    shown, found = said.text.replace(" ", ""), warning.replace(" ", "")
    assert shown.index(found[:60]) < shown.index("step:" + said.verdicts["step"])
    assert str(root) not in str(said.record["results"]["cells"])


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false"])
def test_a_program_that_answers_as_no_python_does_is_none(tmp_path: Path, program: str) -> None:
    laid, python = Laid(tmp_path, tmp_path, tmp_path / "out", ""), Python(program, (), "/", {})
    assert software_of(python, laid, {}, Processes()).interpreter is None
