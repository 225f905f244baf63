"""The number of threads of a measuring process, the same for all commands.

The operators of a tiny model are too short to be split: with more threads than idle cores, threads
wait for each other. So a process has one thread unless the user sets OMP_NUM_THREADS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from asv_bench.errors import Refused

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Read by torch when it is imported, and never again."""

_ONE = "1"
_USERS_OWN = os.environ.get(THREADS_VARIABLE)
"""Before this process sets it for what it measures itself."""


def measured_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a process that measures: one thread where the user set no number.

    `environment` is what it would inherit; None: this process's own variables.
    """
    inherited = dict(os.environ if environment is None else environment)
    inherited[THREADS_VARIABLE] = inherited.get(THREADS_VARIABLE, "").strip() or _ONE
    return inherited


def users_environment() -> dict[str, str]:
    """The variables as the user has them, for commands whose threads are not ours to number."""
    variables = dict(os.environ)
    if not _USERS_OWN:
        variables.pop(THREADS_VARIABLE, None)
    else:
        variables[THREADS_VARIABLE] = _USERS_OWN
    return variables


def measured_threads() -> int:
    """The number of threads of the processes that this one starts, or of itself if it measures.

    Raises Refused if the user's value is not a number: torch would use all cores.
    """
    text = measured_environment()[THREADS_VARIABLE]
    # OpenMP takes a list, a number for each level of nesting; torch uses the first.
    first = text.partition(",")[0].strip()
    if not first.isdecimal() or int(first) < 1:
        raise Refused(
            f"{THREADS_VARIABLE} is {text!r}; it must be a number of threads, 1 or more. Unset it "
            f"to measure with one."
        )
    return int(first)


def threads_text(threads: int) -> str:
    """A number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"
