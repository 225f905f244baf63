"""Memory of a device: how much there is, and refusing in a sentence what it cannot hold.

Linux grants memory that it does not have, and ends the process that then uses it. So what is asked
for is compared with what there is before anything is allocated.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.errors import ConfigError, KvtrailError

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")

# What a limit of control groups, the usage below it, and its part that can be dropped are called,
# in both versions.
_CGROUP_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)

# torch says so in a plain RuntimeError where memory of the host is short.
_SAYS_NO_MEMORY = re.compile(r"allocate memory|out of memory|not enough memory", re.IGNORECASE)


def available_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on `device`."""
    if device.type != "cuda":
        return host_bytes()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    # What torch keeps of tensors that are gone.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes + kept


def host_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that the machine, its control groups and its own limit leave to this process.

    Parameters
    ----------
    proc, cgroups
        Where the kernel's files are mounted.
    """
    meminfo = _table(proc / "meminfo")
    if "MemAvailable:" in meminfo:
        of_machine = 1024 * (meminfo["MemAvailable:"] + meminfo.get("SwapFree:", 0))
    else:
        of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rooms = [_room(group) for group in _groups_of_this_process(proc, cgroups)]
    rooms.append(_room_of_address_space())
    return max(0, min([of_machine, *(room for room in rooms if room is not None)]))


def require_bytes(what: str, num_bytes: int, device: torch.device, remedy: str) -> None:
    """Do nothing where `device` has room for so many bytes.

    Raises
    ------
    ConfigError
        It has not; the sentence says `what` takes how much, what there is, and the `remedy`.
    """
    available = available_bytes(device)
    if num_bytes > available:
        raise ConfigError(
            f"{what} would take {in_words(num_bytes)}, but {device} has {in_words(available)} "
            f"free: {remedy}."
        )


@contextmanager
def allocating(what: str, num_bytes: int, device: torch.device, remedy: str) -> Iterator[None]:
    """Surround what allocates at least `num_bytes` on `device`.

    Raises
    ------
    ConfigError
        As `require_bytes`, before; or where memory runs out within.
    """
    require_bytes(what, num_bytes, device, remedy)
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        raise ConfigError(
            f"{what} would take {in_words(num_bytes)} and scratch, which {device} cannot give: "
            f"{in_words(available_bytes(device))} are free; {remedy}."
        ) from error


def _is_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, KvtrailError):
        return isinstance(error.__cause__, torch.OutOfMemoryError)
    return _SAYS_NO_MEMORY.search(str(error)) is not None


def in_words(num_bytes: int) -> str:
    """A number of bytes in the largest unit of which there is at least one."""
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    if not power:
        return f"{num_bytes} bytes"
    tenths = num_bytes * 10 >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power]}"


def _groups_of_this_process(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The directories of this process's control groups and of those around them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = cgroups / controllers
            inner = root / path.lstrip("/")
            yield inner
            # A container may see its own group as the root, under another path than its own.
            yield from (parent for parent in inner.parents if parent.is_relative_to(root))


def _room(group: Path) -> int | None:
    """Bytes that a control group leaves; None where it sets no limit."""
    for limit_name, usage_name, droppable in _CGROUP_FILES:
        try:
            limit = int((group / limit_name).read_text())
            usage = int((group / usage_name).read_text())
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
        stat = _table(group / "memory.stat")
        return limit - usage + sum(stat.get(name, 0) for name in droppable)
    return None


def _room_of_address_space() -> int | None:
    """Bytes that `ulimit -v` leaves; None where it sets no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int((_PROC / "self" / "statm").read_text().split()[0])
    return limit - pages * os.sysconf("SC_PAGE_SIZE")


def _table(path: Path) -> dict[str, int]:
    """The numbers of a file whose lines begin with a name and a number."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
