"""The wheel holds the ruler, the engine and the kernels, and works where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
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
    """Build from the source distribution, as an index's users do where no wheel fits.

    That is built from a copy: setuptools would leave its build folder in the checkout and reuse it.
    """
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    # The whole tree, so that a package that must not be in the wheel has its chance to be.
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    # With setuptools at hand, no isolated build environment and so no network is needed.
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, out, cwd=source)
    [packed] = out.glob("*.tar.gz")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", out)
    run(sys.executable, "-m", "pip", "wheel", *options, packed, cwd=source)
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


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> metadata.Distribution:
    """The wheel in an environment as `pip install kvtrail` makes it."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    [packages] = environment.glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "-q")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=environment)
    [found] = metadata.distributions(name="kvtrail", path=[str(packages)])
    # What pip would fetch is linked from here: tests have no network.
    for name in needed_by(found.requires or ()):
        files = metadata.distribution(name).files or ()
        for top in {file.parts[0] for file in files} - {".."}:
            source = Path(metadata.distribution(name).locate_file(top))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    return found


@pytest.fixture(scope="module")
def without_torch(installed: metadata.Distribution) -> Path:
    """The folder of the environment's programs."""
    return Path(installed.locate_file("")).parents[2] / "bin"


def test_metadata(installed):
    found = installed.metadata
    assert (found["Name"], found["Requires-Python"]) == ("kvtrail", ">=3.11")
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Version"] == asv_bench.__version__
    assert found["Description-Content-Type"] == "text/markdown"
    # As it lies there: importlib.metadata reads it in one of two ways.
    assert installed.read_text("METADATA").endswith((ROOT / "README.md").read_text("utf-8"))
    packed = [str(file) for file in installed.files]
    assert any(name.endswith("licenses/LICENSE") for name in packed)

    def names(extra: str) -> set[str]:
        lines = map(Requirement, installed.requires)
        return {
            one.name for one in lines if one.marker is None or one.marker.evaluate({"extra": extra})
        }

    always = {"msgspec", "numpy", "nvidia-ml-py", "rich", "scipy", "typer"}
    assert names("") == always
    assert {"torch", "triton"} <= names("engine")
    assert "asv" in names("history")
    assert names("transformers") - always == {"transformers"}, "not needed to run"


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
    words = ("compare", "HEAD~1", "HEAD", "--quick", "--", *COMMAND)
    done = kvtrail([without_torch / "kvtrail", *words])
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
    code = f"""
from pathlib import Path
from asv_bench.subjects.declared import DeclaredSubject
subject = DeclaredSubject.of_command(Path.cwd(), ("sh", "bench.sh", {python!r}))
with subject.pairs() as source:
    print(source.prepare(subject.resolve("HEAD").hash))
"""
    assert run(python, "-c", code, cwd=toy.root) == "{}\n"
