"""A machine with a torch of its own, faked with a real virtual environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

HOST_PACKAGES: Mapping[str, str] = {"triton": "3.6.0", "numpy": "2.5.2"}


@pytest.fixture
def make_host(tmp_path: Path) -> Callable[..., Path]:
    """A maker of virtual environments that hold a fake torch; it gives the interpreter."""

    def make(
        name: str = "host",
        torch: str | None = "2.11.0+cu130",
        cuda: str | None = "13.0",
        others: Mapping[str, str] = HOST_PACKAGES,
    ) -> Path:
        environment = tmp_path / name
        command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
        subprocess.run(command, check=True)
        [packages] = environment.glob("lib/python*/site-packages")
        if torch is not None:
            (packages / "torch").mkdir()
            # Deciding whose torch to use must not cost its import.
            (packages / "torch" / "__init__.py").write_text("raise ImportError('imported')\n")
            version = f"__version__ = {torch!r}\ncuda = {cuda!r}\n"
            (packages / "torch" / "version.py").write_text(version)
        for one, version in {**({"torch": torch} if torch else {}), **others}.items():
            # Its metadata, and no code.
            information = packages / f"{one.replace('-', '_')}-{version}.dist-info"
            information.mkdir()
            text = f"Metadata-Version: 2.1\nName: {one}\nVersion: {version}\n"
            (information / "METADATA").write_text(text)
        return environment / "bin" / "python3"

    return make
