"""The asv environment and the identity guard, through asv itself on a toy history."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented
from toy_project import ToyProject, git, make_project

from asv_bench.benchmarks import sharing
from asv_bench.benchmarks.sharing import WrongEngineError
from asv_bench.history import asv_environment
from asv_bench.history.asv_results import Figure, read_results


def run_asv(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """asv at a toy's root, with the toy's working tree on PYTHONPATH as a trap."""
    inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, "-m", "asv", "run", "--bench=Toy", "--show-stderr", *arguments],
        cwd=root,
        env={**inherited, "PYTHONPATH": str(root), "KVTRAIL_MACHINE": "toy", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> ToyProject:
    """A toy of two commits and one without an engine, all measured; the tree differs from all."""
    project = make_project(tmp_path_factory.mktemp("toy") / "project", commits=2)
    home = project.root.parent / "home"
    home.mkdir()
    # As a user may ask git to lay files out, and as a hook calls asv.
    (project.root / ".git" / "info" / "attributes").write_text("* text eol=crlf\n")
    elsewhere = str(home.parent / "elsewhere")
    git(home.parent, "init", "--quiet", elsewhere)
    project.git("rm", "--quiet", "-r", "engine")
    project.commits.append(project.commit("no engine"))
    (project.root / "engine").mkdir()
    project.set_engine(99)
    (project.root / "hashes").write_text("\n".join(project.commits))
    rounds = ("--interleave-rounds", "--record-samples", "--attribute=rounds=2")
    hashes = f"HASHFILE:{project.root / 'hashes'}"
    done = run_asv(project.root, *rounds, hashes, HOME=str(home), GIT_DIR=f"{elsewhere}/.git")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(home.iterdir()), "asv wrote to the home directory"
    return project


def figures(project: ToyProject, name: str) -> dict[str, Figure]:
    found = read_results(project.root / "reports" / "asv").figures
    return {figure.commit: figure for figure in found if figure.series.figure == name}


def test_each_commit_is_measured_with_its_own_engine_by_todays_ruler(measured: ToyProject) -> None:
    first, second, _ = measured.commits
    samples = {commit: one.samples for commit, one in figures(measured, "step").items()}
    assert samples == {first: (1.0, 1.0), second: (2.0, 2.0)}, "no engine, no figure"
    assert {one.samples for one in figures(measured, "ruler").values()} == {(7.0, 7.0)}
    # Each in a process of its own, with one thread.
    assert {one.samples for one in figures(measured, "threads").values()} == {(1.0, 1.0)}
    processes = [one for of in figures(measured, "process").values() for one in of.samples]
    assert len(processes) == len(set(processes)) == 4
    machines = read_results(measured.root / "reports" / "asv").machines
    assert list(machines) == ["own-toy"]
    assert {"gpu", "driver", "torch", "triton", "num_cpu"} <= set(machines["own-toy"])


def test_commits_are_laid_out_as_they_are_and_nothing_is_installed(measured: ToyProject) -> None:
    (environment,) = (measured.root / ".asv" / "env").iterdir()
    assert not list(environment.glob("bin/pip*"))
    checkouts = environment / "commits"
    assert {path.name for path in checkouts.iterdir()} == set(measured.commits)
    first = checkouts / measured.commits[0]
    assert sorted(path.name for path in first.iterdir()) == ["COMMIT", "engine", "kernels"]
    assert (first / "engine" / "__init__.py").read_bytes() == b"STEP = 1\n"
    assert measured.git("rev-parse", "HEAD").strip() == measured.commits[2]
    assert measured.git("status", "--porcelain").split() == ["??", "engine/", "??", "hashes"]


@pytest.mark.thorough
def test_measuring_the_existing_environment_is_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", commits=1)
    done = run_asv(project.root, "-E", "existing", "--set-commit-hash", project.commits[0])
    assert done.returncode == 2, done.stdout
    assert "cannot tell which commit's engine it imports" in " ".join(done.stdout.split())
    assert all(figure.failed for figure in figures(project, "step").values())


def test_the_host_lends_its_own_python_and_no_checkout_of_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = f"{sys.version_info.major}.{sys.version_info.minor}"
    accepted = filter(asv_environment.HostEnvironment.matches, (host, "same", "2.7"))
    assert list(accepted) == [host, "same"]
    checkout, packages = tmp_path / "checkout", tmp_path / "site-packages"
    (checkout / "asv_bench").mkdir(parents=True)
    (checkout / "asv_bench" / "__main__.py").write_text("")
    packages.mkdir()
    standard = sysconfig.get_path("stdlib")
    entries = [str(checkout), str(packages), str(tmp_path / "missing"), standard]
    monkeypatch.setattr(sys, "path", entries)
    assert asv_environment.borrowed_paths() == [str(packages)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What asv sets for a benchmark of commit "c"*40; returns that commit's checkout."""
    checkout = tmp_path.resolve() / "commits" / ("c" * 40)
    for package in ("engine", "kernels"):
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text("")
        monkeypatch.delitem(sys.modules, package, raising=False)
    (checkout / "COMMIT").write_text("c" * 40 + "\n")
    monkeypatch.setenv("ASV_ENV_TYPE", "host")
    monkeypatch.setenv("ASV_ENV_DIR", str(tmp_path))
    monkeypatch.setenv("ASV_COMMIT", "c" * 40)
    monkeypatch.syspath_prepend(str(checkout))
    return checkout


def test_the_guard_accepts_the_commit_under_test_and_nothing_else(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sharing.check_identity() == "c" * 40
    for variable in ("ASV_COMMIT", "ASV_ENV_TYPE"):
        with monkeypatch.context() as outside:
            outside.delenv(variable)
            with pytest.raises(WrongEngineError, match="Run asv without -E"):
                sharing.check_identity()
    with monkeypatch.context() as other:
        other.setenv("ASV_COMMIT", "d" * 40)
        with pytest.raises(WrongEngineError, match="holds no commit"):
            sharing.check_identity()
    with monkeypatch.context() as imported:
        impostor = type(sys)("engine")
        impostor.__file__ = "/elsewhere/engine/__init__.py"
        imported.setitem(sys.modules, "engine", impostor)
        with pytest.raises(WrongEngineError, match="/elsewhere/engine"):
            sharing.check_identity()
    with monkeypatch.context() as installed:
        elsewhere = tmp_path / "installed"
        (elsewhere / "engine").mkdir(parents=True)
        (elsewhere / "engine" / "__init__.py").write_text("")
        installed.syspath_prepend(str(elsewhere))
        with pytest.raises(WrongEngineError, match="installed/engine, not from the checkout"):
            sharing.check_identity()
    (environment / "COMMIT").write_text("e" * 40)
    with pytest.raises(WrongEngineError, match="holds eeeeeeee"):
        sharing.check_identity()


def test_a_commit_without_kernels_skips_even_where_a_namesake_is_installed(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesake = tmp_path / "site-packages"
    (namesake / "kernels").mkdir(parents=True)
    (namesake / "kernels" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(namesake)])
    (environment / "kernels" / "__init__.py").unlink()
    (environment / "kernels").rmdir()
    with pytest.raises(SkipNotImplemented, match="no 'kernels' package"):
        sharing.check_identity()
