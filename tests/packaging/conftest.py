"""A machine with a torch of its own, faked with a real virtual environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MakeHost = Callable[..., Path]
HOST_PACKAGES: Mapping[str, str] = {"triton": "3.6.0", "numpy": "2.5.2"}


def site_packages(environment: Path) -> Path:
    """Return where an environment's packages are."""
    [directory] = environment.glob("lib/python*/site-packages")
    return directory


def add_distribution(directory: Path, name: str, version: str) -> None:
    """Make a package look installed: its metadata, and no code."""
    information = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (information / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def make_host(tmp_path: Path) -> MakeHost:
    """Return a maker of virtual environments that hold a fake torch; it gives the interpreter."""

    def make(
        name: str = "host",
        torch: str | None = "2.11.0+cu130",
        cuda: str | None = "13.0",
        others: Mapping[str, str] = HOST_PACKAGES,
    ) -> Path:
        environment = tmp_path / name
        command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
        subprocess.run(command, check=True)
        packages = site_packages(environment)
        if torch is not None:
            (packages / "torch").mkdir()
            # Deciding whose torch to use must not cost its import.
            (packages / "torch" / "__init__.py").write_text("raise ImportError('imported')\n")
            (packages / "torch" / "version.py").write_text(
                f"__version__ = {torch!r}\ncuda = {cuda!r}\n"
            )
            add_distribution(packages, "torch", torch)
        for other, version in others.items():
            add_distribution(packages, other, version)
        return environment / "bin" / "python3"

    return make
