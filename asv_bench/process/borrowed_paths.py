"""Where this interpreter finds packages, for processes that measure a commit's engine instead."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence

from asv_bench.errors import Refused


def search_path(paths: Sequence[str]) -> str:
    """The paths as PYTHONPATH takes them.

    Raises Refused if one of them holds the separator, which nothing in that variable can express.
    """
    for path in paths:
        if os.pathsep in path:
            raise Refused(
                f"the path {path} holds {os.pathsep!r}, which separates the entries of Python's "
                f"search path; move it to a folder without that character."
            )
    return os.pathsep.join(paths)


def borrowed_paths() -> list[str]:
    """Directories from which this interpreter imports packages, in order, its own library excluded.

    The interpreter may itself live in a virtual environment that borrows from another one by a
    `.pth` file, so the search path as it stands is what counts, not where it was configured.
    Checkouts of this project are left out: a measured process must not find any engine but that of
    its commit.
    """
    library = {
        os.path.realpath(path)
        for name in ("stdlib", "platstdlib")
        if (path := sysconfig.get_path(name))
    }
    library |= {os.path.join(path, "lib-dynload") for path in set(library)}
    borrowed = []
    for entry in sys.path:
        path = os.path.abspath(entry)
        is_checkout = os.path.isfile(os.path.join(path, "asv_bench", "__main__.py"))
        if os.path.isdir(path) and os.path.realpath(path) not in library and not is_checkout:
            borrowed.append(path)
    return borrowed
