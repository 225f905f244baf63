"""Exact versions from loose requirements, by pip's own resolver and without installing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_torch import normalised

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / ".ci" / "locks"
# pip compares platform tags literally, so every older glibc that wheels are tagged with is listed.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)


class ResolutionError(RuntimeError):
    """pip found no set of versions, or could not fetch them."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One exact distribution."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def read_requirements(path: Path) -> list[str]:
    """Read a requirements or constraints file without its comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


# The extras that sessions install; the reference of the parity tests is a group of its own.
EXTRAS = ("engine", "history", "studies")


def project_requirements(pyproject: dict[str, Any], groups: Iterable[str]) -> list[str]:
    """List the dependencies with `EXTRAS`, and those of the groups, includes followed."""
    project = pyproject["project"]
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += project.get("optional-dependencies", {}).get(extra, ())
    for group in groups:
        requirements += _group(pyproject["dependency-groups"], group)
    return list(dict.fromkeys(requirements))


def _group(groups: dict[str, Any], name: str) -> list[str]:
    listed: list[str] = []
    for entry in groups[name]:
        listed += [entry] if isinstance(entry, str) else _group(groups, entry["include-group"])
    return listed


def target_options(python: str | None) -> list[str]:
    """Return pip's options for wheels of another Python on Linux x86-64; none for this one."""
    if python is None:
        return []
    platforms = [option for tag in PLATFORMS for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]


def run_pip(*arguments: str) -> None:
    """Run pip quietly.

    Raises
    ------
    ResolutionError
        It failed; what it printed says why.
    """
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise ResolutionError(f"pip {arguments[0]} failed, for the reason printed above")


def resolve(
    requirements: Sequence[str], constraints: Sequence[str], python: str | None = None
) -> list[Pin]:
    """Resolve requirements and all that they need, as into an empty environment.

    Parameters
    ----------
    requirements, constraints
        Lines as in pip's files.
    python
        Another Python's version, such as ``"3.12"``; None for the one that runs this.

    Returns
    -------
    list of Pin
        By name, without local version labels: ``2.13.0`` where the index gave ``2.13.0+cpu``.

    Raises
    ------
    ResolutionError
        pip finds no such set.
    """
    with tempfile.TemporaryDirectory() as scratch:
        constraints_file = Path(scratch, "constraints.txt")
        constraints_file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        report = Path(scratch, "report.json")
        options = ["--dry-run", "--ignore-installed", "--report", str(report)]
        run_pip(
            "install",
            *options,
            *("-c", str(constraints_file)),
            *target_options(python),
            *requirements,
        )
        found = [entry["metadata"] for entry in json.loads(report.read_text("utf-8"))["install"]]
    pins = [Pin(normalised(m["name"]), m["version"].partition("+")[0]) for m in found]
    return sorted(pins, key=lambda pin: pin.name)
