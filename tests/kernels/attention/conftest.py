"""What all tests of attention share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test runs the torch implementation, `fused_attention` must choose it too."""
    if "implementation" in request.fixturenames:
        name = request.getfixturevalue("implementation").name
        if name == "torch":
            monkeypatch.setattr("kernels.attention.fused.uses_triton", lambda tensor: False)
