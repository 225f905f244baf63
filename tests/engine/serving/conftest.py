"""A server that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served
from speaking_checkpoints import save_speaking


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that reads and writes text."""
    return save_speaking(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def served(checkpoint: Path) -> Iterator[Served]:
    """A server of it, called tiny; it must be at rest, and without a traceback, at the end."""
    options = ("--served-model-name", "tiny", "--max-batch-size", "16")
    with Served.start(checkpoint, *options) as one:
        yield one
        one.wait_until_at_rest()
        assert "Traceback" not in one.said()
