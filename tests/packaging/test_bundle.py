"""What an offline GPU host gets: exactly what it lacks, the history, and a script that says no."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import resolution
from packaging.requirements import Requirement
from resolution import Pin

import offline_bundle

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    command = ["git", *identity, "-C", str(directory), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, the second one changing the only file."""
    directory = tmp_path / "repository"
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        (directory / "file").write_text(text)
        git(directory, "add", "-A")
        git(directory, "commit", "-q", "-m", text)
    return directory


class TestWhatTravels:
    def test_groups_and_their_includes_are_asked_for(self):
        pyproject = {
            "project": {
                "dependencies": ["a", "b"],
                "optional-dependencies": {"engine": ["e"], "other": ["f"]},
            },
            "dependency-groups": {"x": ["c", {"include-group": "y"}], "y": ["d", "a"]},
        }
        assert resolution.project_requirements(pyproject, ["x"]) == ["a", "b", "e", "c", "d"]

    def test_host_versions_go_before_the_lock(self):
        lock = ["asv==0.6.6", "numpy==2.3.5", "scipy==1.17.1"]
        constraints = offline_bundle.host_constraints(lock, ["numpy==2.5.2", "scipy"])
        assert constraints == ["numpy==2.5.2", "asv==0.6.6"]

    def test_only_what_the_host_lacks(self):
        pins = [Pin("asv", "0.6.6"), Pin("hf-xet", "1"), Pin("torch", "2.13.0")]
        kept = offline_bundle.travelling(pins, ["torch==2.11.0", "hf_xet"])
        assert [str(pin) for pin in kept] == ["asv==0.6.6"]

    def test_torch_and_triton_never_travel(self):
        host = resolution.read_requirements(ROOT / ".ci" / "locks" / "gpu-host.txt")
        names = {line.partition("==")[0] for line in host}
        assert {"torch", "triton", "numpy", "scipy", "transformers"} <= names
        assert not names & {"asv", "nox", "nvtx", "rich", "typer", "pytest", "nvidia-ml-py"}

    def test_the_host_satisfies_the_project(self):
        host = resolution.read_requirements(ROOT / ".ci" / "locks" / "gpu-host.txt")
        versions = dict(line.split("==") for line in host if "==" in line)
        pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
        for line in resolution.project_requirements(pyproject, offline_bundle.GROUPS):
            requirement = Requirement(line)
            if requirement.name in versions:
                assert versions[requirement.name] in requirement.specifier, line

    def test_wheels_are_for_the_hosts_python_and_glibc(self):
        options = resolution.target_options("3.12")
        assert "--only-binary=:all:" in options
        assert options[options.index("--python-version") + 1] == "3.12"
        platforms = [b for a, b in itertools.pairwise(options) if a == "--platform"]
        assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64"} <= set(platforms)
        assert "any" in resolution.target_options("3.12", pure=True)
        assert resolution.target_options(None) == []


class TestSize:
    def test_small_enough(self, tmp_path):
        (tmp_path / "a.whl").write_bytes(bytes(2**20))
        assert offline_bundle.check_size(tmp_path, limit_mib=1.0) == 1.0

    def test_too_large_names_the_largest(self, tmp_path):
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        for name, mib in (("small.whl", 1), ("large.whl", 3)):
            (wheels / name).write_bytes(bytes(mib * 2**20))
        with pytest.raises(offline_bundle.BundleError, match=r"4\.0 MiB .* large\.whl 3\.0, small"):
            offline_bundle.check_size(tmp_path, limit_mib=3.5)


class TestHistory:
    def test_clone_of_the_bundle_has_every_commit(self, repository, tmp_path):
        commit = offline_bundle.write_history(tmp_path / "history.bundle", repository)
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "-q", "history.bundle", str(clone))
        assert git(clone, "rev-parse", "HEAD") == commit == git(repository, "rev-parse", "HEAD")
        assert git(clone, "rev-parse", "--abbrev-ref", "HEAD") == "main"
        assert git(clone, "log", "--format=%s").split() == ["two", "one"]

    def test_uncommitted_changes_are_announced(self, repository, tmp_path, capsys):
        offline_bundle.write_history(tmp_path / "clean.bundle", repository)
        assert capsys.readouterr().out == ""
        (repository / "file").write_text("three")
        offline_bundle.write_history(tmp_path / "dirty.bundle", repository)
        assert "only what is committed travels" in capsys.readouterr().out

    def test_shallow_clone_is_refused(self, repository, tmp_path):
        shallow = tmp_path / "shallow"
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", str(shallow))
        with pytest.raises(offline_bundle.BundleError, match="shallow"):
            offline_bundle.write_history(tmp_path / "history.bundle", shallow)

    def test_repository_without_a_commit_is_refused(self, tmp_path):
        git(tmp_path, "init", "-q")
        with pytest.raises(offline_bundle.BundleError, match="rev-parse failed"):
            offline_bundle.write_history(tmp_path / "history.bundle", tmp_path)


class TestRunScript:
    """The script up to where nox starts, with a stand-in for nox where it gets that far."""

    @pytest.fixture
    def bundle(self, repository: Path, tmp_path: Path) -> Path:
        directory = tmp_path / "bundle"
        (directory / "wheels").mkdir(parents=True)
        offline_bundle.write_history(directory / "history.bundle", repository)
        shutil.copy2(ROOT / ".ci" / "offline_run.sh", directory / "run.sh")
        (directory / "PYTHON").write_text(f"{HERE}\n")
        return directory

    def run(self, bundle: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", str(bundle / "run.sh"), *arguments],
            cwd=bundle.parent,
            env={**os.environ, "KVTRAIL_PYTHON": sys.executable, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    def stand_in(self, bundle: Path, status: int = 0) -> Path:
        """Put a nox that says what it was given where the script would have installed nox."""
        clone = bundle.parent / "kvtrail"
        git(bundle, "clone", "-q", "history.bundle", str(clone))
        bin_directory = clone / ".venv" / "bin"
        bin_directory.mkdir(parents=True)
        (bin_directory / "nox").touch(mode=0o755)
        python = bin_directory / "python"
        python.write_text(
            '#!/bin/sh\necho "args:$*"; echo "no index:$PIP_NO_INDEX links:$PIP_FIND_LINKS"\n'
            'echo "host:$KVTRAIL_HOST_PYTHON folders:${KVTRAIL_DIR-}${KVTRAIL_TREE-}"\n'
            "mkdir -p reports/asv; echo 1 > reports/asv/new\n"
            f"exit {status}\n"
        )
        python.chmod(0o755)
        return clone

    def test_needs_a_session(self, bundle):
        finished = self.run(bundle)
        assert finished.returncode == 2
        assert "name a nox session" in finished.stderr

    def test_refuses_another_python(self, bundle):
        (bundle / "PYTHON").write_text("3.99\n")
        finished = self.run(bundle, "tests")
        assert finished.returncode == 2
        assert f"the wheels are for Python 3.99 and {sys.executable} is {HERE}" in finished.stderr

    def test_refuses_a_missing_python(self, bundle):
        finished = self.run(bundle, "tests", KVTRAIL_PYTHON="no-such-python")
        assert finished.returncode == 2
        assert "no no-such-python here" in finished.stderr

    @pytest.mark.parametrize(
        "arguments", [("kernels", "--", "-k", "x y"), ("kernels", "-k", "x y")]
    )
    def test_runs_nox_offline_on_the_hosts_python(self, bundle, arguments):
        self.stand_in(bundle)
        finished = self.run(bundle, *arguments)
        assert finished.returncode == 0, finished.stderr
        assert "args:-m nox -s kernels -- -k x y" in finished.stdout
        assert f"no index:1 links:{bundle}/wheels" in finished.stdout
        assert f"host:{sys.executable}" in finished.stdout

    def test_reports_come_back_even_after_a_failure(self, bundle, tmp_path):
        self.stand_in(bundle, status=7)
        finished = self.run(bundle, "bench", KVTRAIL_OUT=str(tmp_path / "out"))
        assert finished.returncode == 7
        listing = subprocess.run(
            ["tar", "-tzf", str(tmp_path / "out" / "reports.tar.gz")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "reports/asv/new" in listing.split()

    def test_working_tree_replaces_the_commits_files(self, bundle, repository, tmp_path):
        clone = self.stand_in(bundle)
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / "only-here").write_text("three")
        ran = self.run(bundle, "bench", KVTRAIL_TREE=str(tree), KVTRAIL_DIR=str(clone))
        # Such as tests of this script would write there.
        assert "folders:\n" in ran.stdout
        assert (clone / "only-here").exists()
        assert not (clone / "file").exists()
        assert git(clone, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD")
        self.run(bundle, "bench")
        assert (clone / "file").read_text() == "two", "the next run without a tree is HEAD again"
