"""A Python that has imported what lives share, and forks each of them, so that they begin at once.

Run as a script by `processes`, in the Python of the lives, with the number of a socket that brings
lives, and with what to import: "module", or "module:function" for a function that is called once,
as it remembers its answer. A life finds what a process from scratch would find, and is one where a
fork could not promise that.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

_READ_AT_START = ("LD_", "MALLOC_", "GLIBC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_")
"""Of variables that a process reads once: one that is forked has read those of this Python."""

_LAUNCHER = importlib.import_module("launcher")
# The script's folder holds parts of the ruler, which no life may find.
del sys.path[0], sys.modules["launcher"]


def main() -> None:
    """Fork a life for each message, until the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for name in sys.argv[2:]:
        _share(name)
    # Collections of garbage in lives then leave alone what is shared.
    gc.collect()
    gc.freeze()
    begun = time.time()
    # Nobody waits for what is forked here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not descriptors:
            return
        # Threads are not forked, but the locks that they hold are.
        can_fork = len(os.listdir("/proc/self/task")) == 1 and not _is_changed(begun)
        if os.fork() == 0:
            control.close()
            _supervise(*descriptors, can_fork=can_fork)
        for descriptor in descriptors:
            os.close(descriptor)


def _share(name: str) -> None:
    """Import a module, or call a function of one; a life that needs it says what is wrong."""
    module, _, function = name.partition(":")
    with contextlib.suppress(Exception):
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _supervise(asked: int, said: int, report: int, control: int, *, can_fork: bool) -> NoReturn:
    """Be what `launcher` is, for a fork of this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.close(said)
    with os.fdopen(asked, "rb") as file:
        life: dict[str, Any] = json.load(file)

    def begin() -> int:
        process = os.fork()
        if process == 0:
            for descriptor in (report, control):
                os.close(descriptor)
            _live(life, can_fork=can_fork)
        return process

    os.write(report, b"%d\n" % os.getpid())
    counters = _LAUNCHER.opened_counters() if life["is_counted"] else []
    _LAUNCHER.supervise(report, control, begin, counters)
    os._exit(0)


def _live(life: dict[str, Any], *, can_fork: bool) -> NoReturn:
    """Run a Python script or module as from scratch, and end the process."""
    os.setpgid(0, 0)
    words, variables = life["words"], life["variables"]
    with contextlib.suppress(OSError):  # as from scratch, where its cores may be gone as well
        os.sched_setaffinity(0, life["cores"])
    code = 1
    try:
        os.chdir(life["folder"])
        can_fork = can_fork and _read_at_start(os.environ) == _read_at_start(variables)
        os.environ.clear()
        os.environ.update(variables)
        is_module = life["is_module"]
        beside = os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0]))
        first = [] if life["is_safe_path"] else [beside]
        paths = variables.get("PYTHONPATH", "").split(os.pathsep)
        own = [os.path.abspath(path) for path in paths if path]
        if not (can_fork and _is_like_scratch([*first, *own])):
            os.execve(life["program"], [life["program"], *life["options"], *words], variables)
        sys.path[:] = [*first, *dict.fromkeys([*own, *sys.path])]
        sys.argv = list(words)
        if is_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # Taking the interpreter apart would copy every page that is shared.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    os._exit(code)


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


def _is_changed(since: float) -> bool:
    """Whether something was installed since, such as by the setup of another label."""
    return any(os.path.isdir(one) and os.stat(one).st_mtime > since for one in sys.path)


def _is_like_scratch(own: list[str]) -> bool:
    """Whether this fork has in it nothing that a process from scratch had not.

    A driver of GPUs that was asked anything has read CUDA_VISIBLE_DEVICES already, and does not
    work in a fork. What is imported may be another module where the life looks first.
    """
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    imported = {name.partition(".")[0] for name in sys.modules}
    found = {
        name.partition(".")[0]
        for folder in own
        if folder not in sys.path and os.path.isdir(folder)
        for name in os.listdir(folder)
    }
    return imported.isdisjoint(found) and not any(path.startswith("/dev/nvidia") for path in opened)


if __name__ == "__main__":
    main()
