"""What the tests of benchmarks share: an engine of any commit, and a GPU or none."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest

from asv_bench import benchmarks
from asv_bench.benchmarks import engine_runs, kernels

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
COMMIT = "c" * 40


@pytest.fixture
def any_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Benchmarks take whatever engine is imported, and share runs in a directory of the test."""
    for name in MODULES:
        module = importlib.import_module(f"asv_bench.benchmarks.{name}")
        if hasattr(module, "check_identity"):
            monkeypatch.setattr(module, "check_identity", lambda: COMMIT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Decides whether the benchmarks believe that there is a GPU."""

    def decide(answer: bool) -> None:
        for module in (engine_runs, kernels):
            monkeypatch.setattr(module, "has_cuda_gpu", lambda: answer)

    return decide
