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
from _collections_abc import Callable
from _thread import start_new_thread
from ctypes import CDLL
from select import select

GRACE_SECONDS = 10.0
"""For processes that were asked to end."""
END, KILL = b"e", b"k"
"""What the ruler says. Where it is gone and says nothing, it is KILL too."""
_KILL_SECONDS = 10.0
"""After which a process that cannot be killed is left: another user's, or one within a driver."""
_SET_CHILD_SUBREAPER = 36
_SIGKILL, _SIGPIPE, _SIGTERM, _SIGXFSZ = 9, 13, 15, 25
"""As on every Linux: the module of signals is large."""


def main() -> None:
    """Run the command, and report seconds, KiB and the exit code once it has ended."""
    report, control = int(sys.argv[1]), int(sys.argv[2])
    cores, arguments = sys.argv[3], sys.argv[4:]

    def begin() -> int:
        # A group of its own: what a script does to its group it does not do to this process.
        # Python ignores two signals that the command must not.
        return os.posix_spawnp(
            arguments[0], arguments, os.environ, setpgroup=0, setsigdef=(_SIGPIPE, _SIGXFSZ)
        )

    try:
        if cores:
            os.sched_setaffinity(0, map(int, cores.split(",")))
        supervise(report, control, begin)
    except OSError as error:
        os.write(report, f"{arguments[0]}: {error.strerror}.".encode())


def supervise(report: int, control: int, begin: Callable[[], int]) -> None:
    """Begin a process, say how it ended, and wait until nothing of what it started is left.

    Raises OSError if it cannot be begun.
    """
    for descriptor in (report, control):
        os.set_inheritable(descriptor, False)
    CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.perf_counter()
    process = begin()
    asked: list[bytes] = []
    start_new_thread(_obey, (control, asked))
    while True:
        try:
            ended, status, usage = os.wait4(-1, 0)
        except ChildProcessError:  # there is none any more, also none that was orphaned
            return
        if ended == process:
            seconds = time.perf_counter() - begun
            code = os.waitstatus_to_exitcode(status)
            os.write(report, f"{seconds!r} {usage.ru_maxrss} {code}".encode())
            if not asked:
                start_new_thread(_kill_all, ())


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
