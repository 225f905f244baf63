"""Lives that are forks of a Python that has imported what they share: `preload` in `[subject]`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from asv_bench.measure.command_line import PythonCommand
from asv_bench.process.run_apart import last_words

if TYPE_CHECKING:
    from asv_bench.measure.processes import Job, Processes

_SCRIPT = Path(__file__).with_name("forkserver.py")
_OF_ONE_LIFE = ("KVTRAIL_TREE", "KVTRAIL_OUT")


class ForkServer:
    """A Python that forks lives; see `forkserver`.

    It is one for all, so that what chance gave it (addresses, the seed of hashes) is the same for
    all. Of the first life's variables it has those that name no folder of a variant.
    """

    def __init__(self, program: str, job: Job, processes: Processes) -> None:
        from asv_bench.measure.processes import Job

        folders = [job.variables[name] for name in _OF_ONE_LIFE if job.variables.get(name)]

        def is_shared(text: str) -> bool:
            return not any(folder in text for folder in folders)

        paths = job.variables.get("PYTHONPATH", "").split(os.pathsep)
        variables = {
            **{name: text for name, text in job.variables.items() if is_shared(text)},
            "PYTHONPATH": os.pathsep.join(path for path in paths if path and is_shared(path)),
        }
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._scope = contextlib.ExitStack()
        with theirs:
            words = (program, str(_SCRIPT), str(theirs.fileno()), *job.preload)
            folder, inherited = Path(tempfile.gettempdir()), (theirs.fileno(),)
            started = processes.started(Job(words, folder, variables, inherited=inherited))
            self._process = self._scope.enter_context(started)

    def begin(self, command: PythonCommand, job: Job, descriptors: tuple[int, int, int]) -> None:
        """Ask for a life. The descriptors get what it prints and what `launcher` reports, and tell.

        Raises OSError if the server has ended.
        """
        cores = job.cores or sorted(os.sched_getaffinity(0))
        told = {"folder": str(job.folder), "variables": dict(job.variables), "cores": cores}
        with tempfile.TemporaryFile() as asked, self._lock:
            asked.write(json.dumps({**asdict(command), **told}).encode())
            asked.seek(0)
            socket.send_fds(self._control, [b"+"], [asked.fileno(), *descriptors])

    @property
    def has_ended(self) -> bool:
        """Whether it forks no more."""
        return self._process.has_ended()

    def last_words(self) -> str:
        """What it printed last, of its own."""
        try:
            return last_words(self._process.text())
        except ValueError:
            return "it was stopped"

    def close(self) -> None:
        """End it, and all that it forked."""
        self._control.close()
        self._scope.close()
