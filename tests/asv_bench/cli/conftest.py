"""What tests of commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_pairs import Answer
from typer.testing import CliRunner

from asv_bench.cli.commands import build_app
from asv_bench.compare import noise_pools
from asv_bench.measure import log
from asv_bench.session import session
from asv_bench.subjects import choose
from asv_bench.subjects.own_suite import OwnSuite


@pytest.fixture(autouse=True)
def _noise_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How few pairs are enough depends on what earlier comparisons have kept."""
    monkeypatch.setattr(noise_pools, "FOLDER", tmp_path / "noise")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run a command in this process, of a suite in place of kvtrail's; refusals are raised."""
    monkeypatch.setattr(session, "WORKPLACE", tmp_path)
    monkeypatch.setattr(log, "FOLDER", tmp_path / "pairs")
    path = tmp_path / "record.json"

    def run(suite: OwnSuite | None, *words: str) -> Answer:
        if suite is not None:
            monkeypatch.setattr(choose, "OwnSuite", lambda root: suite)
        path.unlink(missing_ok=True)
        done = CliRunner().invoke(build_app(), [*words, "--json", str(path)])
        if not isinstance(done.exception, SystemExit | None):
            raise done.exception
        record = json.loads(path.read_text()) if path.exists() else {}
        return done.exit_code, " ".join(done.output.split()), record

    return run
