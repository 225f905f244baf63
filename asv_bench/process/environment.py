"""What processes that measure are told: their threads, where packages lie, and what asv agrees on.

The operators of a tiny model are too short to be split: with more threads than idle cores, threads
wait for each other. So a process has one thread unless the user sets OMP_NUM_THREADS.

Free of imports from asv, which the measured processes have no need to load.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence

from asv_bench.errors import Refused

ENVIRONMENT_TYPE = "host"
"""The name of the environment that figures are filed under."""
MEASURED_PACKAGES = ("engine", "kernels")
"""What an environment holds of a commit: the packages of the wheel and nothing else of it, so that
no benchmark can pick up the ruler of the commit instead of today's."""
COMMIT_MARKER = "COMMIT"
"""A file beside the measured packages that names their commit; the identity guard reads it."""
TRIAL_VARIABLE = "KVTRAIL_TRIAL"
"""Set for the first life of a variant, which shows what it can give; its figures are not kept."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Read by torch when it is imported, and never again."""
_USERS_OWN = os.environ.get(THREADS_VARIABLE)
"""Before this process sets it for what it measures itself."""


def measured_environment() -> dict[str, str]:
    """The variables of a process that measures: ours, and one thread where the user set none."""
    return {**os.environ, THREADS_VARIABLE: os.environ.get(THREADS_VARIABLE, "").strip() or "1"}


def users_environment() -> dict[str, str]:
    """The variables as the user has them, for commands whose threads are not ours to number."""
    others = {name: value for name, value in os.environ.items() if name != THREADS_VARIABLE}
    return others | ({THREADS_VARIABLE: _USERS_OWN} if _USERS_OWN else {})


def measured_threads() -> int:
    """The number of threads of measured processes; Refused if the user's value is none: torch would
    use all cores."""
    text = measured_environment()[THREADS_VARIABLE]
    # OpenMP takes a list, a number for each level of nesting; torch uses the first.
    first = text.partition(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        raise Refused(
            f"{THREADS_VARIABLE} is {text!r}; it must be a number of threads, 1 or more. Unset it "
            f"to measure with one."
        )
    return int(first)


def search_path(paths: Sequence[str]) -> str:
    """The paths as PYTHONPATH takes them; Refused if one holds the separator of its entries."""
    for path in paths:
        if os.pathsep in path:
            raise Refused(
                f"the path {path} holds {os.pathsep!r}, which separates the entries of Python's "
                f"search path; move it to a folder without that character."
            )
    return os.pathsep.join(paths)


def borrowed_paths() -> list[str]:
    """Directories from which this interpreter imports packages, in order, its own library excluded.

    A virtual environment may borrow from another one by a `.pth` file, so the search path as it
    stands is what counts. Checkouts of this project are left out: a measured process must not find
    any engine but that of its commit.
    """
    standard = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    library = {*standard, *(os.path.join(path, "lib-dynload") for path in standard)}
    return [
        path
        for path in map(os.path.abspath, sys.path)
        if os.path.isdir(path)
        and os.path.realpath(path) not in library
        and not os.path.isfile(os.path.join(path, "asv_bench", "__main__.py"))
    ]
