"""What a life ran with: the Python that did its work, and packages that are not the commit's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from declared_repository import DeclaredRepository, noisy, seen
from toy_repository import ToyRepository

from asv_bench.measure.interpreter import Watched
from asv_bench.measure.processes import Processes
from asv_bench.measure.software import Software
from asv_bench.subjects.choose import declared_by
from asv_bench.subjects.declared import DeclaredSubject

BENCH = "import time\ntime.sleep(0.05)\n"


def distribution(folder: Path, name: str, version: str) -> None:
    """What pip notes of a package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with one package, and a line that makes its Python complain."""
    home = tmp_path / "env"
    (home / "bin").mkdir(parents=True)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (home / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
    )
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(base.resolve())
    major, minor = sys.version_info[:2]
    packages = home / "lib" / f"python{major}.{minor}" / "site-packages"
    distribution(packages, "toylib", "4.55")
    (packages / "broken.pth").write_text("import nothing_of_this_name\n")
    return home


def cell(toy: ToyRepository, *command: str) -> Software:
    """What the command of HEAD ran with."""
    subject = DeclaredSubject.of_command(toy.root, command)
    commit = subject.resolve("HEAD").hash
    with subject.pairs() as source:
        source.prepare(commit)
        return subject.cells[commit]


@pytest.mark.parametrize(
    "line",
    [
        "python bench.py",
        "cd sub && python ../bench.py",
        "env A=1 python bench.py",
        "taskset -c {core} python bench.py",
        "bash -c 'time python bench.py'",
        "sh -c 'python bench.py'",
        "nice timeout 60 python bench.py; true",
        "./bench.py",
        "cd sub && ./up.sh",
        "cd sub && ../../env/bin/python3 ../bench.py",
        "python -c 'import os; os.system(\"{other} -c 0\")' && python bench.py",
    ],
)
def test_the_python_that_runs_is_asked_for_its_packages(
    declared, environment: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    made = declared("", f"#!/usr/bin/env python3\n{BENCH}")
    (made.root / "bench.py").chmod(0o755)
    (made.root / "sub").mkdir()
    (made.root / "sub" / "up.sh").write_text("#!/bin/sh\nexec ../bench.py\n")
    (made.root / "sub" / "up.sh").chmod(0o755)
    (made.root / "json.py").write_text("raise SystemExit")
    made.toy.git("add", ".")
    made.toy.git("commit", "-q", "-m", "more files")
    monkeypatch.setenv("PATH", f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}")
    line = line.format(core=min(os.sched_getaffinity(0)), other=sys.executable)
    found = cell(made.toy, line.replace("../../env", str(environment)))
    assert Path(found.interpreter or "").parent == environment / "bin"
    assert found.packages == {"toylib": "4.55"}


@pytest.mark.parametrize("script", ["#!\nexit 0", "exit 0", ": python bench.py"])
def test_without_a_python_there_are_no_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    monkeypatch.chdir(toy.root)
    (toy.root / "run").write_text(f"{script}\n")
    (toy.root / "run").chmod(0o755)
    toy.git("add", "run")
    toy.git("commit", "-q", "-m", "a program")
    found = cell(toy, "./run here")
    assert (found.interpreter, found.packages) == (None, {})


def test_what_a_launcher_has_just_begun_is_not_the_python_of_a_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A launcher that was just started may have no command line yet; what it starts has one."""
    code = "import os, time; print(os.fork() or '', flush=True); time.sleep(60)"
    launcher = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    child = max(launcher.stdout.readline(), launcher.stdout.readline()).decode().strip()
    read_bytes, of_child = Path.read_bytes, list[Path]()

    def read(path: Path) -> bytes:
        of_child.extend([path] if path.parent.name == child else [])
        is_early = path == Path(f"/proc/{launcher.pid}/cmdline") and not of_child
        return b"" if is_early else read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    watched, ended = Watched(Processes()), threading.Event()
    watching = threading.Thread(target=watched._watch, args=(launcher.pid, ended))
    watching.start()
    try:
        deadline = time.monotonic() + 20
        while len(of_child) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        ended.set()
        watching.join()
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()
    assert len(of_child) >= 8
    assert watched.python is None


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
        for name, text in texts.items():
            (made.root / name).write_text(text)
        made.toy.git("add", *texts)
        made.commit(seen(noisy("step_ms", figure)), f"version {version}")
    return made


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]
) -> None:
    monkeypatch.setattr("asv_bench.measure.trees.CACHE", tmp_path / "cache")
    made = tinytext(tmp_path, own, files)
    subject = declared_by(made.root / "kvtrail.toml")
    with subject.pairs() as source:
        commit = subject.resolve("HEAD").hash
        source.prepare(commit)
        packages = subject.cells[commit].packages
    assert packages["dep"] == "2"
    assert not [name for name in packages if "tiny" in name.lower()]


@pytest.mark.usefixtures("asks_for_packages")
def test_compare_and_explain_name_the_dependency_and_not_the_package_under_test(
    kvtrail, tmp_path: Path
) -> None:
    noted = f'{OWN}{NOTED} > "$KVTRAIL_OUT/tt.dist-info/direct_url.json"'
    made = tinytext(tmp_path, noted, {})
    said = kvtrail(made.toy, "compare", "HEAD~1", "HEAD")
    assert said.code == 3, said.text
    assert "Base and head ran with other packages: dep 1 → 2." in said.text
    cell = said.record["results"]["cells"][made.toy.git("rev-parse", "HEAD")]
    assert cell["packages"]["dep"] == "2"
    assert cell["variables"]["PYTHONPATH"] == "$KVTRAIL_OUT:$KVTRAIL_TREE"
    said = kvtrail(made.toy, "explain", "HEAD~1", "HEAD", "--anyway")
    [cause] = said.record["results"]["causes"]
    assert cause["sentence"] == "another version of dep 1 → 2"
