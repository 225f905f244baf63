"""Write .ci/locks/cpu.txt: one tested version of everything that a session installs."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable

from resolution import (
    LOCKS,
    ROOT,
    Pin,
    ResolutionError,
    project_requirements,
    read_requirements,
    resolve,
)

GROUPS = ("test", "lint", "types", "docs", "fleet")
HEADER = """\
# Written by `nox -s lock` from pyproject.toml and .ci/locks/cpu.in; not to be edited.
# Constraints, not requirements: a session installs what it needs, in these versions.
"""


def is_cuda_runtime(name: str) -> bool:
    """Say whether a package is part of CUDA as torch on the public index brings it.

    Such packages are torch's own business: a lock that names them would not fit a CPU build.
    """
    return name.startswith(("cuda-", "nvidia-")) and name != "nvidia-ml-py"


def lock_text(pins: Iterable[Pin]) -> str:
    """Return the text of the lock for resolved pins."""
    return HEADER + "".join(f"{pin}\n" for pin in pins if not is_cuda_runtime(pin.name))


def main() -> int:
    """Resolve and write; return the exit status."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    requirements = project_requirements(pyproject, GROUPS)
    try:
        pins = resolve(requirements, read_requirements(LOCKS / "cpu.in"))
    except ResolutionError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    (LOCKS / "cpu.txt").write_text(lock_text(pins), encoding="utf-8")
    print(f"{LOCKS / 'cpu.txt'}: {len(pins)} packages resolved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
