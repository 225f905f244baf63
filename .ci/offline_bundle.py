"""Pack what an offline GPU host lacks: wheels, the repository's history, one script.

The host keeps its own torch, Triton and whatever else ``locks/gpu-host.txt`` names; everything else
that a nox session installs is resolved for the host's Python, exactly, and downloaded as wheels.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from resolution import (
    LOCKS,
    ROOT,
    Pin,
    ResolutionError,
    project_requirements,
    read_requirements,
    resolve,
    run_pip,
    target_options,
)

from host_torch import requirement_name

SIZE_LIMIT_MIB = 48.0
GROUPS = ("test",)
"""What a GPU host is for: lint and types say there what they say anywhere."""
# Not of the project, but needed to start it where there is nothing: pip unpacks the rest.
BOOTSTRAP = ("nox", "pip", "setuptools")


class BundleError(RuntimeError):
    """The bundle cannot be made as asked."""


def host_constraints(lock: Iterable[str], host: Iterable[str]) -> list[str]:
    """Constrain a resolution to the host's versions where it has them, to the lock elsewhere."""
    host = list(host)
    theirs = {requirement_name(line) for line in host}
    pinned = [line for line in host if "==" in line]
    return pinned + [line for line in lock if requirement_name(line) not in theirs]


def travelling(pins: Iterable[Pin], host: Iterable[str]) -> list[Pin]:
    """Keep the distributions that the host does not already have."""
    theirs = {requirement_name(line) for line in host}
    return [pin for pin in pins if pin.name not in theirs]


def write_history(destination: Path, repository: Path = ROOT) -> str:
    """Write the repository's branches and HEAD as a git bundle; return HEAD's commit.

    Raises
    ------
    BundleError
        The repository has no commit, or its history is cut off.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            raise BundleError(f"git {arguments[0]} failed: {finished.stderr.strip()}")
        return finished.stdout.strip()

    if git("rev-parse", "--is-shallow-repository") == "true":
        raise BundleError(
            "this clone is shallow, so its history would not travel; run git fetch --unshallow"
        )
    commit = git("rev-parse", "HEAD")
    git("bundle", "create", "--quiet", str(destination), "HEAD", "--branches")
    if git("status", "--porcelain"):
        print("The working tree differs from HEAD; only what is committed travels.")
    return commit


def size_mib(directory: Path) -> float:
    """Return the size of all files under a directory, in MiB."""
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 2**20


def check_size(directory: Path, limit_mib: float = SIZE_LIMIT_MIB) -> float:
    """Return the bundle's size in MiB.

    Raises
    ------
    BundleError
        It is above the limit; the message names the largest files.
    """
    size = size_mib(directory)
    if size > limit_mib:
        files = sorted(directory.rglob("*.*"), key=lambda f: f.stat().st_size, reverse=True)[:5]
        largest = ", ".join(f"{f.name} {f.stat().st_size / 2**20:.1f}" for f in files)
        raise BundleError(
            f"the bundle is {size:.1f} MiB and must stay under {limit_mib:.0f}; largest, in MiB: "
            f"{largest}"
        )
    return size


def build(directory: Path, python: str, host: Sequence[str]) -> None:
    """Make the bundle in ``directory``, replacing what is there.

    Parameters
    ----------
    directory
        Where it goes.
    python
        The host's Python, such as ``"3.12"``.
    host
        What the host already has, one requirement a line.
    """
    shutil.rmtree(directory, ignore_errors=True)
    wheels = directory / "wheels"
    wheels.mkdir(parents=True)

    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [*project_requirements(pyproject, GROUPS), *BOOTSTRAP]
    # What the host's large packages need travels too, where it is small; torch brings gigabytes.
    asked = [entry for entry in wanted if requirement_name(entry) not in ("torch", "triton")]
    constraints = host_constraints(read_requirements(LOCKS / "cpu.txt"), host)
    print(f"Resolving {len(asked)} requirements for Python {python} ...", flush=True)
    pins = travelling(resolve(asked, constraints, python), host)

    print(f"Downloading {len(pins)} wheels ...", flush=True)
    download = ("download", "--no-deps", "--dest", str(wheels))
    run_pip(*download, *target_options(python), *map(str, pins))
    commit = write_history(directory / "history.bundle")
    shutil.copy2(ROOT / ".ci" / "offline_run.sh", directory / "run.sh")
    (directory / "PYTHON").write_text(f"{python}\n", encoding="utf-8")
    print(
        f"{directory}: {len(pins)} wheels for Python {python}, history up to {commit[:12]}, "
        f"{check_size(directory):.1f} MiB of at most {SIZE_LIMIT_MIB:.0f}. "
        "On the host: bash run.sh SESSION [ARGS]"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="bundle", description=__doc__)
    parser.add_argument("--python-version", default="3.12", help="the host's Python (3.12)")
    parser.add_argument("--output", type=Path, default=ROOT / ".bundle", help="folder to make")
    parser.add_argument(
        "--host", type=Path, default=LOCKS / "gpu-host.txt", help="list of what the host has"
    )
    options = parser.parse_args(arguments)
    try:
        build(options.output, options.python_version, read_requirements(options.host))
    except (BundleError, ResolutionError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
