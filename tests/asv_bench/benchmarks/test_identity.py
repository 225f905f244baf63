"""The identity guard: a benchmark measures the engine of the commit that it is filed under."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_bench.benchmarks import sharing
from asv_bench.benchmarks.sharing import WrongEngineError
from asv_bench.process.environment import borrowed_paths


def test_the_host_lends_no_checkout_of_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout, packages = tmp_path / "checkout", tmp_path / "site-packages"
    (checkout / "asv_bench").mkdir(parents=True)
    (checkout / "asv_bench" / "__main__.py").write_text("")
    packages.mkdir()
    standard = sysconfig.get_path("stdlib")
    entries = [str(checkout), str(packages), str(tmp_path / "missing"), standard]
    monkeypatch.setattr(sys, "path", entries)
    assert borrowed_paths() == [str(packages)]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What a life of commit "c"*40 is told; returns that commit's checkout."""
    checkout = tmp_path.resolve() / "checkout"
    for package in ("engine", "kernels"):
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text("")
        monkeypatch.delitem(sys.modules, package, raising=False)
    (checkout / "COMMIT").write_text("c" * 40 + "\n")
    monkeypatch.setenv("KVTRAIL_TREE", str(checkout))
    monkeypatch.setenv("KVTRAIL_LABEL", "c" * 40)
    monkeypatch.syspath_prepend(str(checkout))
    return checkout


def test_the_guard_accepts_the_commit_under_test_and_nothing_else(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sharing.check_identity()
    for variable in ("KVTRAIL_TREE", "KVTRAIL_LABEL"):
        with monkeypatch.context() as outside:
            outside.delenv(variable)
            with pytest.raises(WrongEngineError, match="Measure it with"):
                sharing.check_identity()
    with monkeypatch.context() as other:
        other.setenv("KVTRAIL_TREE", str(tmp_path / "gone"))
        with pytest.raises(WrongEngineError, match="gone holds no commit"):
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
