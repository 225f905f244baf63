"""Forks the processes that measure, from one that has imported what they share.

Started as a script by `forked_process`, and imports nothing of the ruler, which no process that
measures must find imported. Each life is asked for over a connection of its own, and ends with it.
Where a fork would not be like a process from scratch, a life is one from scratch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Life:
    """What a process is to be.

    Attributes
    ----------
    arguments
        The script that it runs, and that script's arguments.
    variables
        Its whole environment.
    folder, output
        Where it works, and the file that gets what it says.
    cores
        CPU cores that it may use; empty: all.
    shared
        Modules that it may find imported, and functions, behind a colon, that it may find called.
    unshared
        Packages that it must import itself.
    """

    arguments: Sequence[str]
    variables: dict[str, str]
    folder: str
    output: str
    cores: Sequence[int]
    shared: Sequence[str]
    unshared: Sequence[str]


def main() -> None:
    """Serve until the socket, whose number is the argument, is closed; a life returns from here."""
    server = Forkserver(socket.socket(fileno=int(sys.argv[1])))
    life = server.serve()
    if life is None:
        os._exit(0)  # whatever was imported has no say in it
    _become(life, server.process)
    if not server.is_like_scratch:
        os.execve(sys.executable, [sys.executable, "-P", *life.arguments], dict(life.variables))
    paths = life.variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = list(life.arguments)
    runpy.run_path(life.arguments[0], run_name="__main__")
    # Taking the interpreter apart would copy every page that is the server's, too.
    sys.stdout.flush()
    os._exit(0)


class Forkserver:
    """Forks lives and tells how each ended.

    Parameters
    ----------
    control
        Brings a connection for each life. Its end is the server's, and that of all lives.

    Attributes
    ----------
    process
        The server's own number.
    is_like_scratch
        Whether the last fork goes on as a process from scratch would.
    """

    def __init__(self, control: socket.socket) -> None:
        self.process = os.getpid()
        self.is_like_scratch = True
        self._control = control
        self._lives: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, self._ends = os.pipe()
        self._shared: set[str] = set()

    def serve(self) -> Life | None:
        """Serve until the control socket is closed. Return None; in a life, return what it is."""
        os.set_blocking(self._ends, False)
        signal.set_wakeup_fd(self._ends)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
                    if not descriptors:
                        self._end_all()
                        return None
                    if (life := self._fork(socket.socket(fileno=descriptors[0]))) is not None:
                        return life
                elif key.fileobj == self._ended:
                    os.read(self._ended, 4096)
                    self._tell_ends()
                elif key.data in self._lives:  # whoever asked for this life wants its end
                    self._selector.unregister(key.fileobj)
                    _kill_group(key.data)

    def _fork(self, connection: socket.socket) -> Life | None:
        """Begin the life that is asked for; return it in its own process."""
        with connection.makefile("rb") as stream:
            line = stream.readline()
        if not line:
            connection.close()
            return None
        life = Life(**json.loads(line))
        self._share(life.shared)
        self.is_like_scratch = _is_like_scratch(life.unshared)
        process = os.fork()
        if process == 0:
            self._leave(connection)
            return life
        with contextlib.suppress(OSError):  # it may have done so itself, or be gone
            os.setpgid(process, process)
        self._lives[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, process)
        return None

    def _share(self, shared: Sequence[str]) -> None:
        """Do what is not done yet, and keep it out of the lives' garbage collections."""
        wanted = [name for name in shared if name not in self._shared]
        for name in wanted:
            module, _, function = name.partition(":")
            # A life that needs it says what is wrong with it.
            with contextlib.suppress(Exception):
                imported = importlib.import_module(module)
                if function:
                    getattr(imported, function)()
        if wanted:
            self._shared.update(wanted)
            gc.collect()
            gc.freeze()

    def _leave(self, connection: socket.socket) -> None:
        """In a life: give up all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._ended)
        os.close(self._ends)
        for one in (self._control, connection, *self._lives.values()):
            one.close()

    def _tell_ends(self) -> None:
        for process in list(self._lives):
            # The group goes first: once its leader is reaped, the number may be another's.
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._tell_end(process)

    def _tell_end(self, process: int) -> None:
        _kill_group(process)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        connection = self._lives.pop(process)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        with contextlib.suppress(OSError):  # nobody may wait for it any more
            connection.sendall(b"%d\n" % code)
        connection.close()

    def _end_all(self) -> None:
        for process in list(self._lives):
            self._tell_end(process)


def _is_like_scratch(unshared: Sequence[str]) -> bool:
    """Whether a fork of this process has in it nothing that one from scratch had not.

    Threads are not forked, but the locks that they hold are. A driver of GPUs that was asked
    anything has read CUDA_VISIBLE_DEVICES already, and does not work in a fork.
    """
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return (
        len(os.listdir("/proc/self/task")) == 1
        and not any(path.startswith("/dev/nvidia") for path in opened)
        and sys.modules.keys().isdisjoint(unshared)
    )


def _become(life: Life, parent: int) -> None:
    """Take the life's group, folder, output, cores and environment; die with the parent."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that wanted this measurement is gone")
    os.chdir(life.folder)
    output = os.open(life.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if life.cores:
        os.sched_setaffinity(0, life.cores)
    os.environ.clear()
    os.environ.update(life.variables)


def _kill_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
