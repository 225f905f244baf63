"""The lock, and what an offline GPU host gets: what it lacks, the history, and a script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import resolution
import resolve_lock
from packaging.requirements import Requirement
from resolution import Pin
from toy_repository import ToyRepository

import host_torch
import offline_bundle

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def repository(tmp_path: Path) -> ToyRepository:
    """Two commits of one file."""
    toy = ToyRepository(tmp_path / "repository")
    toy.root.mkdir()
    toy.begin("file", ("one", "one"), ("two", "two"))
    return toy


class TestWhatTravels:
    def test_every_dependency_is_locked_for_a_cpu_and_the_public_index(self):
        lines = resolution.read_requirements(ROOT / ".ci" / "locks" / "cpu.txt")
        locked = dict(line.split("==") for line in lines)
        # An environment of its own, which installs what these pin.
        groups = PROJECT["dependency-groups"].keys() - {"detectors"}
        asked = resolution.project_requirements(PROJECT, groups)
        assert {host_torch.requirement_name(line) for line in asked} <= set(locked)
        # numpy as the interpreter of Triton 3.6 needs it.
        assert tuple(map(int, locked["numpy"].split(".")[:2])) < (2, 4)
        assert not [name for name in locked if resolve_lock.is_cuda_runtime(name)]
        assert not [version for version in locked.values() if "+" in version]
        names = ("cuda-pathfinder", "nvidia-cublas", "nvidia-ml-py")
        text = resolve_lock.lock_text(Pin(name, "1") for name in names)
        assert text == f"{resolve_lock.HEADER}nvidia-ml-py==1\n"

    def test_the_host_has_torch_and_satisfies_the_project(self):
        host = resolution.read_requirements(ROOT / ".ci" / "locks" / "gpu-host.txt")
        names = {line.partition("==")[0] for line in host}
        assert {"torch", "triton", "numpy", "scipy", "transformers"} <= names
        assert not names & {"asv", "nox", "nvtx", "rich", "typer", "pytest", "nvidia-ml-py"}
        versions = dict(line.split("==") for line in host if "==" in line)
        for line in resolution.project_requirements(PROJECT, offline_bundle.GROUPS):
            requirement = Requirement(line)
            if requirement.name in versions:
                assert versions[requirement.name] in requirement.specifier, line

    def test_what_is_asked_for_and_what_of_it_travels(self):
        engine = {"engine": ["e"], "other": ["f"]}
        pyproject = {
            "project": {"dependencies": ["a", "b"], "optional-dependencies": engine},
            "dependency-groups": {"x": ["c", {"include-group": "y"}], "y": ["d", "a"]},
        }
        assert resolution.project_requirements(pyproject, ["x"]) == ["a", "b", "e", "c", "d"]
        lock = ["asv==0.6.6", "numpy==2.3.5", "scipy==1.17.1"]
        constraints = offline_bundle.host_constraints(lock, ["numpy==2.5.2", "scipy"])
        assert constraints == ["numpy==2.5.2", "asv==0.6.6"]
        pins = [Pin("asv", "0.6.6"), Pin("hf-xet", "1"), Pin("torch", "2.13.0")]
        kept = offline_bundle.travelling(pins, ["torch==2.11.0", "hf_xet"])
        assert [str(pin) for pin in kept] == ["asv==0.6.6"]

    def test_wheels_are_for_the_hosts_python_and_glibc_and_not_too_large(self, tmp_path):
        options = resolution.target_options("3.12")
        assert options[:3] == ["--only-binary=:all:", "--python-version", "3.12"]
        assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64"} <= set(options)
        for name, mib in (("small.whl", 1), ("large.whl", 3)):
            (tmp_path / name).write_bytes(bytes(mib * 2**20))
        assert offline_bundle.check_size(tmp_path, limit_mib=4.0) == 4.0
        with pytest.raises(offline_bundle.BundleError, match=r"4\.0 MiB .* large\.whl 3\.0, small"):
            offline_bundle.check_size(tmp_path, limit_mib=3.5)

    def test_the_history_has_every_commit_and_none_that_is_not_made(
        self, repository, tmp_path, capsys
    ):
        commit = offline_bundle.write_history(tmp_path / "history.bundle", repository.root)
        assert capsys.readouterr().out == ""
        repository.git("clone", "-q", str(tmp_path / "history.bundle"), str(tmp_path / "clone"))
        clone = ToyRepository(tmp_path / "clone")
        assert clone.git("rev-parse", "HEAD") == commit == repository.git("rev-parse", "HEAD")
        assert clone.git("log", "--format=%s").split() == ["two", "one"]
        (repository.root / "file").write_text("three")
        offline_bundle.write_history(tmp_path / "dirty.bundle", repository.root)
        assert "only what is committed travels" in capsys.readouterr().out

    def test_a_history_that_is_cut_off_or_empty_is_refused(self, repository, tmp_path):
        shallow, empty = tmp_path / "shallow", tmp_path / "empty"
        repository.git("clone", "-q", "--depth=1", f"file://{repository.root}", str(shallow))
        repository.git("init", "-q", str(empty))
        for root, words in ((shallow, "shallow"), (empty, "rev-parse failed")):
            with pytest.raises(offline_bundle.BundleError, match=words):
                offline_bundle.write_history(tmp_path / "history.bundle", root)


class TestRunScript:
    """The script up to where nox starts, with a stand-in for nox where it gets that far."""

    @pytest.fixture
    def bundle(self, repository: ToyRepository, tmp_path: Path) -> Path:
        """The bundle, beside the clone, in which a nox says what it was given and ends with 7."""
        bundle, programs = tmp_path / "bundle", tmp_path / "kvtrail" / ".venv" / "bin"
        (bundle / "wheels").mkdir(parents=True)
        offline_bundle.write_history(bundle / "history.bundle", repository.root)
        shutil.copy2(ROOT / ".ci" / "offline_run.sh", bundle / "run.sh")
        (bundle / "PYTHON").write_text(f"{HERE}\n")
        repository.git("clone", "-q", str(bundle / "history.bundle"), str(tmp_path / "kvtrail"))
        programs.mkdir(parents=True)
        (programs / "nox").touch(mode=0o755)
        (programs / "python").write_text(
            '#!/bin/sh\necho "args:$*"; echo "no index:$PIP_NO_INDEX links:$PIP_FIND_LINKS"\n'
            'echo "host:$KVTRAIL_HOST_PYTHON folders:${KVTRAIL_DIR-}${KVTRAIL_TREE-}"\n'
            "mkdir -p reports/asv; echo 1 > reports/asv/new\nexit 7\n"
        )
        (programs / "python").chmod(0o755)
        return bundle

    def run(self, bundle: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", str(bundle / "run.sh"), *arguments],
            cwd=bundle.parent,
            env={**os.environ, "KVTRAIL_PYTHON": sys.executable, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_what_it_cannot_do_is_refused(self, bundle):
        missing = {"KVTRAIL_PYTHON": "no-such-python"}
        assert "name a nox session" in self.run(bundle).stderr
        assert "no no-such-python here" in self.run(bundle, "tests", **missing).stderr
        (bundle / "PYTHON").write_text("3.99\n")
        finished = self.run(bundle, "tests")
        assert finished.returncode == 2
        assert f"the wheels are for Python 3.99 and {sys.executable} is {HERE}" in finished.stderr

    @pytest.mark.parametrize("separator", [(), ("--",)])
    def test_nox_runs_offline_and_reports_come_back_even_after_a_failure(
        self, bundle, tmp_path, separator
    ):
        out = tmp_path / "out"
        finished = self.run(bundle, "kernels", *separator, "-k", "x y", KVTRAIL_OUT=str(out))
        assert finished.returncode == 7, finished.stderr
        assert "args:-m nox -s kernels -- -k x y" in finished.stdout
        assert f"no index:1 links:{bundle}/wheels" in finished.stdout
        assert f"host:{sys.executable}" in finished.stdout
        with tarfile.open(out / "reports.tar.gz") as packed:
            assert "reports/asv/new" in packed.getnames()

    def test_working_tree_replaces_the_commits_files(self, bundle, tmp_path):
        clone, tree = tmp_path / "kvtrail", tmp_path / "tree"
        tree.mkdir()
        (tree / "only-here").write_text("three")
        ran = self.run(bundle, "bench", KVTRAIL_TREE=str(tree), KVTRAIL_DIR=str(clone))
        # Such as tests of this script would write there.
        assert "folders:\n" in ran.stdout
        assert (clone / "only-here").exists()
        assert not (clone / "file").exists()
        self.run(bundle, "bench")
        assert (clone / "file").read_text() == "two", "the next run without a tree is HEAD again"
