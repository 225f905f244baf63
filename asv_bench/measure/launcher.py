"""What starts the command of a life, says how it ended, and ends all that it started.

A small process of its own: the kernel counts the memory of whoever starts a program into the
program's peak, and the ruler is larger than many programs. It is also the parent of whatever loses
its own in this life, so that nothing leaves it: not by a session or group of its own, nor by
another environment. Run as a script by `processes`, with the descriptors to report to and to obey
and the cores before the command; what it imports is small. `forkserver` does the same for a fork
of itself.
"""

from __future__ import annotations

import os
import sys
import time
from _collections_abc import Callable, Sequence
from _thread import start_new_thread
from ctypes import CDLL, get_errno
from select import select
from struct import pack, unpack

GRACE_SECONDS = 10.0
"""For processes that were asked to end."""
END, KILL = b"e", b"k"
"""What the ruler says. Where it is gone and says nothing, it is KILL too."""
_KILL_SECONDS = 10.0
"""After which a process that cannot be killed is left: another user's, or one within a driver."""
_SET_CHILD_SUBREAPER = 36
_SIGKILL, _SIGPIPE, _SIGTERM, _SIGXFSZ = 9, 13, 15, 25
"""As on every Linux: the module of signals is large."""
EVENTS = {"instructions": 1, "cycles": 0}
"""What the kernel counts of a life, by the number of the hardware's event."""
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR, _ENABLE_ON_EXEC = 1, 2, 1 << 5, 1 << 6, 1 << 12
_ENABLED_AND_RUNNING = 3


def main() -> None:
    """Run the command, and report as `supervise` does."""
    report, control = int(sys.argv[1]), int(sys.argv[2])
    cores, is_counted, arguments = sys.argv[3], sys.argv[4], sys.argv[5:]

    def begin() -> int:
        # A group of its own: what a script does to its group it does not do to this process.
        # Python ignores two signals that the command must not.
        return os.posix_spawnp(
            arguments[0], arguments, os.environ, setpgroup=0, setsigdef=(_SIGPIPE, _SIGXFSZ)
        )

    try:
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        counters = opened_counters(_DISABLED | _ENABLE_ON_EXEC) if is_counted else []
        supervise(report, control, begin, counters)
    except OSError as error:
        _tell(report, f"{arguments[0]}: {error.strerror}.")


def opened_counters(when: int = 0) -> list[int]:
    """What counts `EVENTS` of what is begun from now on: descriptors, or errors below 0.

    Of user code alone, which every user may count where the kernel lets anybody.
    """
    library = CDLL(None, use_errno=True)
    flags = when | _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    number = _PERF_EVENT_OPEN.get(os.uname().machine, -1)
    found = []
    for event in EVENTS.values():
        asked = pack("=IIQQQQQ16x", 0, 64, event, 0, 0, _ENABLED_AND_RUNNING, flags)
        found.append(library.syscall(number, asked, 0, -1, -1, 0))
        if found[-1] < 0:
            found[-1] = -get_errno()
    return found


def supervise(
    report: int, control: int, begin: Callable[[], int], counters: Sequence[int] = ()
) -> None:
    """Begin a process, report, and wait until nothing of what it started is left.

    The report is its seconds, KiB and exit code once it has ended, and in a second line, once all
    have, the CPU time of all and what `opened_counters` counted, or the errors.
    Raises OSError if it cannot be begun.
    """
    for descriptor in (report, control, *(one for one in counters if one >= 0)):
        os.set_inheritable(descriptor, False)
    CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.perf_counter()
    process = begin()
    asked: list[bytes] = []
    cpu_seconds = 0.0
    start_new_thread(_obey, (control, asked))
    while True:
        try:
            ended, status, usage = os.wait4(-1, 0)
        except ChildProcessError:  # there is none any more, also none that was orphaned
            counts = [one if one < 0 else _counted(one) for one in counters]
            _tell(report, " ".join(map(repr, [cpu_seconds, *counts])))
            return
        cpu_seconds += usage.ru_utime + usage.ru_stime
        if ended == process:
            seconds = time.perf_counter() - begun
            code = os.waitstatus_to_exitcode(status)
            _tell(report, f"{seconds!r} {usage.ru_maxrss} {code}\n")
            if not asked:
                start_new_thread(_kill_all, ())


def _tell(report: int, said: str) -> None:
    """Report to the ruler; where it is gone, what it began is to be ended all the same."""
    try:
        os.write(report, said.encode())
    except BrokenPipeError:
        return


def _counted(counter: int) -> int:
    """What it counted; what it missed, while others had the hardware, is made up for."""
    value, enabled, running = unpack("=QQQ", os.read(counter, 24))
    return round(value * enabled / running) if running else 0


def stat_of(process: int | str) -> list[bytes]:
    """What the kernel says of a process, from its state on: its parent is the second field.

    The clock ticks that it worked are the 12th and 13th, and when it began, in ticks, is the 20th.
    Raises OSError where it has ended.
    """
    with open(f"/proc/{process}/stat", "rb") as file:
        # Behind the program's name, which is in parentheses and may hold some.
        return file.read().rpartition(b")")[2].split()


def descendants(process: int) -> list[int]:
    """The processes that a process started, and those that these started."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(stat_of(name)[1])
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [process]
    while waiting:
        begun = children.pop(waiting.pop(), [])
        found += begun
        waiting += begun
    return found


def _obey(control: int, asked: list[bytes]) -> None:
    """End the life as the ruler says."""
    asked.append(os.read(control, 1))
    if asked == [END]:
        _signal_all(_SIGTERM)
        select([control], [], [], GRACE_SECONDS)
    _kill_all()


def _kill_all() -> None:
    """Kill until there is nothing: what is killed may have started more meanwhile."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        _signal_all(_SIGKILL)
        time.sleep(0.002)
    os._exit(1)


def _signal_all(number: int) -> None:
    for process in descendants(os.getpid()):
        try:
            os.kill(process, number)
        except OSError:  # it ended meanwhile, or is another user's
            continue


if __name__ == "__main__":
    main()
