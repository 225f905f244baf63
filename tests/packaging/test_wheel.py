"""The wheel holds the ruler, the engine and the kernels, and works where it is installed."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.message import Message
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from toy_repository import COMMAND, ToyRepository

import asv_bench

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("asv_bench", "engine", "kernels")


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools would leave its build folder in the checkout and reuse it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    # The whole tree, so that a package that must not be in the wheel has its chance to be.
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    # With setuptools at hand, no isolated build environment and so no network is needed.
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", out)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=source)
    [built] = out.glob("*.whl")
    return built


def test_holds_all_of_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if ".dist-info/" not in name}
    tracked = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == tracked
    assert {"engine/py.typed", "kernels/py.typed"} <= packed


def email_of(wheel: Path) -> Message:
    """The wheel's metadata, which has the form of an e-mail."""
    archive = zipfile.ZipFile(wheel)
    [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name))


def test_metadata(wheel):
    found = email_of(wheel)
    assert (found["Name"], found["Requires-Python"]) == ("kvtrail", ">=3.11")
    # The second is that of uPlot, which draws the graphs of pages.
    assert found["License-Expression"] == "Apache-2.0 AND MIT"
    assert found["Version"] == asv_bench.__version__
    required = [Requirement(line) for line in found.get_all("Requires-Dist")]
    always = {one.name for one in required if one.marker is None}
    assert always == {"msgspec", "numpy", "nvidia-ml-py", "rich", "scipy", "typer"}
    by_extra = {
        extra: {one.name for one in required if one.name not in always and _is_of(one, extra)}
        for extra in found.get_all("Provides-Extra")
    }
    assert {"torch", "triton"} <= by_extra["engine"]
    assert "asv" in by_extra["history"]
    assert by_extra["transformers"] == {"transformers"}, "not needed to run"
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/asv_bench/pages/uplot/LICENSE") for name in names)


def _is_of(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


@pytest.fixture(scope="module")
def without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that `pip install kvtrail` makes."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    [packages] = environment.glob("lib/python*/site-packages")
    # What pip would fetch is linked from here: tests have no network.
    for name in needed_by(email_of(wheel).get_all("Requires-Dist")):
        files = metadata.distribution(name).files or ()
        for top in {file.parts[0] for file in files} - {".."}:
            source = Path(metadata.distribution(name).locate_file(top))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    programs = environment / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "-q")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=environment)
    return programs


def needed_by(lines: Iterable[str], seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """The names of distributions that requirements ask for, and of all that those ask for."""
    for line in lines:
        one = Requirement(line)
        wanted = one.marker is None or one.marker.evaluate({"extra": ""})
        if wanted and one.name not in seen:
            seen = needed_by(metadata.requires(one.name) or (), seen | {one.name})
    return seen


def test_any_repository_is_compared_without_torch(without_torch: Path, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print(find_spec('torch'), find_spec('asv'))"
    assert run(without_torch / "python", "-c", code, cwd=tmp_path).split() == ["None", "None"]
    toy = ToyRepository.make(tmp_path / "toy")
    before = toy.state()
    state = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    kvtrail = partial(subprocess.run, cwd=toy.root, env=state, capture_output=True, text=True)
    done = kvtrail(
        [without_torch / "kvtrail", "compare", "HEAD~1", "HEAD", "--quick", "--", *COMMAND]
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "wall_s: slower" in done.stdout
    assert toy.state() == before
    [record] = (tmp_path / "state" / "kvtrail" / "reports" / "runs").glob("compare-*.json")
    kept = json.loads(record.read_text())
    [answer] = kept["results"]["comparisons"]
    assert len(kept["samples"]) == answer["pairs_used"] >= 6
    refused = kvtrail([without_torch / "kvtrail", "changes"])
    assert refused.returncode == 2
    assert "changes finds nothing to measure" in " ".join(refused.stderr.split())


def test_a_users_own_package_called_engine_is_measured(without_torch: Path, tmp_path: Path) -> None:
    toy = ToyRepository.make(tmp_path / "toy")
    (toy.root / "engine.py").write_text("def run():\n    pass\n")
    toy.git("add", "engine.py")
    toy.commit("exec \"$1\" -c 'import engine; engine.run()'", "run the engine")
    python = str(without_torch / "python")
    code = (
        "from contextlib import ExitStack; from pathlib import Path; "
        "from asv_bench.subjects.declared import DeclaredSubject; "
        f"subject = DeclaredSubject.of_command(Path.cwd(), ('sh', 'bench.sh', {python!r})); "
        "stack = ExitStack(); source = stack.enter_context(subject.pairs()); "
        "print(source.prepare(subject.resolve('HEAD').hash)); stack.close()"
    )
    assert run(python, "-c", code, cwd=toy.root) == "{}\n"


@pytest.mark.thorough
def test_installs_into_a_clean_environment(wheel, tmp_path):
    environment = tmp_path / "clean"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    [packages] = environment.glob("lib/python*/site-packages")
    borrowed = [entry for entry in sys.path if entry.endswith("-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=tmp_path)
    code = (
        "import engine, kernels; print(engine.__file__); print(kernels.__file__); "
        "e = engine.Engine(engine.EngineConfig(model='random:gpt2-tiny', device='cpu')); "
        "print(len(e.generate([[1, 2, 3]], engine.SamplingParams(max_new_tokens=4, "
        "ignore_eos=True))[0].token_ids))"
    )
    engine_file, kernels_file, tokens = run(python, "-c", code, cwd=tmp_path).split()
    assert engine_file.startswith(str(packages))
    assert kernels_file.startswith(str(packages))
    assert tokens == "4"
