"""How many threads torch's operators run on, where the engine runs on the CPU."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

_MOST = 4
"""Small models gain little from more, and lose much once other programs need the cores."""


def set_threads(wanted: int | None, num_ranks: int = 1) -> None:
    """Let torch use `wanted` threads; None: a cautious number, where the user has set none.

    Ranks of one machine share the cautious number.

    A thread that waits for a core holds up all others at the end of every operator, so half of the
    cores stay free. $OMP_NUM_THREADS, $MKL_NUM_THREADS and a `torch.set_num_threads` below the
    number of cores are the user's.
    """
    if wanted is None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        cores = _cores()
        if torch.get_num_threads() < cores or any(
            os.environ.get(name, "").strip() for name in names
        ):
            return
        wanted = max(1, min(_MOST, math.floor(min(cores, _quota()) / 2)) // num_ranks)
    torch.set_num_threads(wanted)


def _cores() -> int:
    """Cores that this process may run on; two threads of one core are one."""
    siblings = set()
    for number in os.sched_getaffinity(0):
        listed = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        siblings.add(listed.read_text() if listed.is_file() else str(number))
    return len(siblings)


def _quota() -> float:
    """Cores' worth of time that the process's control groups leave it; infinite without a limit."""
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    except OSError:
        return math.inf
    place, least = Path("/", own), math.inf
    for folder in (place, *place.parents):
        limit = Path(f"/sys/fs/cgroup/{folder}/cpu.max")
        quota, _, period = limit.read_text().partition(" ") if limit.is_file() else ("max", "", "")
        if quota != "max":
            least = min(least, int(quota) / int(period))
    return least
