"""What the tests of benchmarks share: an engine of any commit, and a GPU or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asv_bench.benchmarks import kernels, sharing


@pytest.fixture
def any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks take whatever engine is imported, and runs of no other test."""
    monkeypatch.setattr(sharing, "check_identity", lambda: None)
    monkeypatch.setattr(sharing, "_runs", {})


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Decides whether the benchmarks believe that there is a GPU."""

    def decide(answer: bool) -> None:
        for module in (sharing, kernels):
            monkeypatch.setattr(module, "has_cuda_gpu", lambda: answer)

    return decide
