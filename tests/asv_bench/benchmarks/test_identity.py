"""The identity guard: a benchmark measures the engine of the commit that it is filed under."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def refused(why: str) -> Iterator[pytest.MonkeyPatch]:
    """What is changed inside is refused, and then undone."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
        with pytest.raises(WrongEngineError, match=why):
            sharing.check_identity()


def test_the_guard_accepts_the_commit_under_test_and_nothing_else(
    environment: Path, tmp_path: Path
) -> None:
    sharing.check_identity()
    for variable in ("KVTRAIL_TREE", "KVTRAIL_LABEL"):
        with refused("Measure it with") as outside:
            outside.delenv(variable)
    with refused("gone holds no commit") as other:
        other.setenv("KVTRAIL_TREE", str(tmp_path / "gone"))
    with refused("/elsewhere/engine") as imported:
        impostor = type(sys)("engine")
        impostor.__file__ = "/elsewhere/engine/__init__.py"
        imported.setitem(sys.modules, "engine", impostor)
    with refused("installed/engine, not from the checkout") as installed:
        elsewhere = tmp_path / "installed"
        (elsewhere / "engine").mkdir(parents=True)
        (elsewhere / "engine" / "__init__.py").write_text("")
        installed.syspath_prepend(str(elsewhere))
    with refused("holds eeeeeeee"):
        (environment / "COMMIT").write_text("e" * 40)


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
