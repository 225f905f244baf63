"""The wheel holds what is measured, nothing else, and works where it is installed."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "kernels")


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
    for name in (*PACKAGES, "asv_bench", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    # With setuptools at hand, no isolated build environment and so no network is needed.
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", out)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=source)
    [built] = out.glob("*.whl")
    return built


def test_holds_all_of_engine_and_kernels_and_nothing_else(wheel):
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


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    assert (metadata["Name"], metadata["Requires-Python"]) == ("kvtrail", ">=3.11")
    assert metadata["License-Expression"] == "Apache-2.0"
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert any(r.startswith("torch>=2.11") for r in required)
    assert not any(r.startswith("transformers") for r in required), "not needed to run"
    assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())


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
