"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from asv_bench.compare import noise_pools


@pytest.fixture(autouse=True)
def _noise_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How few pairs are enough depends on what earlier comparisons have kept."""
    monkeypatch.setattr(noise_pools, "FOLDER", tmp_path / "noise")
