"""The lock names one version of everything, for a CPU and for whoever uses the public index."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import resolution
import resolve_lock
from resolution import Pin

import host_torch

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / ".ci" / "locks" / "cpu.txt"


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    return dict(line.split("==") for line in resolution.read_requirements(LOCK))


def test_every_dependency_is_locked(locked):
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = list(pyproject["dependency-groups"])
    asked = resolution.project_requirements(pyproject, groups)
    assert {host_torch.requirement_name(line) for line in asked} <= set(locked)


def test_torch_and_the_triton_that_it_demands(locked):
    assert (locked["torch"], locked["triton"]) == ("2.13.0", "3.7.1")


def test_numpy_suits_the_interpreter_of_triton_3_6(locked):
    assert tuple(map(int, locked["numpy"].split(".")[:2])) < (2, 4)


def test_cuda_is_left_to_torch(locked):
    assert not [name for name in locked if resolve_lock.is_cuda_runtime(name)]


def test_no_version_of_one_index_only(locked):
    assert not [version for version in locked.values() if "+" in version]


def test_lock_text_drops_cuda_packages_and_keeps_the_monitoring_library():
    pins = [Pin("cuda-pathfinder", "1"), Pin("nvidia-cublas", "1"), Pin("nvidia-ml-py", "13")]
    assert resolve_lock.lock_text(pins).splitlines()[-1] == "nvidia-ml-py==13"
    assert "cu" not in resolve_lock.lock_text(pins).splitlines()[-2]
