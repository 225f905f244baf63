"""The Python that a life runs: its running processes are asked, not the line that starts them."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from asv_bench.measure.launcher import stat_of
from asv_bench.measure.processes import Job, Processes, Started

_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]*")
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.001, 0.05
"""Between two looks: short at first, as a Python may live for a few milliseconds only."""


@dataclass(slots=True)
class Python:
    """A Python that was seen: its program, its variables, and clock ticks that it worked."""

    program: str
    variables: dict[str, str]
    ticks: int = 0


class Watched(Processes):
    """Starts the commands of one life as others do, and sees which Python the first of them runs.

    `python` is the one that worked most, of several that run in turns or in each other; None where
    none was seen so far.
    """

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes = processes
        self._has_begun = False
        self._pythons: dict[int, Python] = {}

    @property
    def python(self) -> Python | None:
        """See the class."""
        programs: dict[str, Python] = {}
        for one in list(self._pythons.values()):
            known = programs.setdefault(one.program, Python(one.program, one.variables))
            known.ticks += one.ticks
        return max(programs.values(), key=lambda one: one.ticks, default=None)

    @contextmanager
    def started(self, job: Job) -> Iterator[Started]:
        """See `Processes`."""
        with self._processes.started(job) as process:
            if self._has_begun:
                yield process
                return
            self._has_begun = True
            if job.preload and (fork := process.command) is not None:
                self._pythons[process.process] = Python(fork.program, dict(job.variables))
            ended = threading.Event()
            watching = threading.Thread(target=self._watch, args=(process.process, ended))
            watching.start()
            try:
                yield process
            finally:
                ended.set()
                watching.join()

    def _watch(self, launcher: int, ended: threading.Event) -> None:
        begun = time.monotonic()
        own, others = {launcher}, set[int]()
        with suppress(OSError):
            while not ended.wait(
                min(_LEAST_PAUSE_S + 0.01 * (time.monotonic() - begun), _MOST_PAUSE_S)
            ):
                numbers = {int(name) for name in os.listdir("/proc") if name.isdigit()}
                others &= numbers
                for number in sorted(numbers - others - {launcher}):
                    with suppress(OSError):
                        parent, ticks = _state(number)
                        (own if number in own or parent in own else others).add(number)
                        if number in own:
                            self._note(number, ticks, launcher)

    def _note(self, number: int, ticks: int, launcher: int) -> None:
        """See what a process runs; what the launcher starts is for a moment the launcher's."""
        folder = Path(f"/proc/{number}")
        executable = os.readlink(folder / "exe")
        if not _PYTHON.fullmatch(Path(executable).name):
            return
        line = (folder / "cmdline").read_bytes()
        environment = os.fsdecode((folder / "environ").read_bytes()).split("\0")
        # Read no sooner: a launcher that has just been started has no line yet.
        of_launcher = Path(f"/proc/{launcher}/cmdline").read_bytes()
        if line in (b"", of_launcher) or os.readlink(folder / "exe") != executable:
            return
        variables = dict(one.split("=", 1) for one in environment if "=" in one)
        word = os.fsdecode(line).split("\0")[0]
        program = _program(word, executable, variables, os.readlink(folder / "cwd"))
        known = self._pythons.get(number)
        # A process may change its name, and then no longer says how it was called.
        if known is None or program != executable:
            self._pythons[number] = known = Python(program, variables)
        known.ticks = ticks


def _state(number: int) -> tuple[int, int]:
    """The parent of a process, and the clock ticks that it worked."""
    fields = stat_of(number)
    return int(fields[1]), int(fields[11]) + int(fields[12])


def _program(word: str, executable: str, variables: dict[str, str], folder: str) -> str:
    """The name by which a Python was called, which tells its environment; else its file."""
    called = shutil.which(word, path=variables.get("PATH", os.defpath)) if "/" not in word else word
    with suppress(OSError):
        named = os.path.normpath(Path(folder, called or ""))
        if Path(named).samefile(executable):
            return named
    return executable
