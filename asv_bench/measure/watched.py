"""Commands of a life that are watched: which Python they run, asked of running processes.

The line that starts a process need not say it.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from asv_bench.measure.command_line import PythonCommand
from asv_bench.measure.launcher import descendants, stat_of
from asv_bench.measure.processes import Job, Processes, Started

_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]*")
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.001, 0.05
"""Between two looks: short at first, as a Python may live for a few milliseconds only."""


@dataclass(slots=True)
class Python:
    """A Python that was seen: its program, how it was called, and clock ticks that it worked."""

    program: str
    words: Sequence[str]  # what follows its name
    folder: str
    variables: Mapping[str, str]
    asks: bool = False  # whether it is a client's
    ticks: int = 0

    @classmethod
    def of(cls, command: PythonCommand, job: Job) -> Python:
        """The Python that a command starts."""
        words = (*command.options, *command.words)
        return cls(command.program, words, str(job.folder), job.variables)

    @property
    def first_on_path(self) -> str:
        """Where it looks for modules first: beside its script, or in its folder; "": neither."""
        for word in self.words:
            if word in ("-P", "-I"):
                return ""
            if word in ("-m", "-c"):
                return self.folder
            if (script := Path(self.folder, word)).is_file():
                return str(script.resolve().parent)
        return ""


class Watched(Processes):
    """Starts the commands of one life as others do, and sees which Python the first of them runs.

    Where the first is a server, other commands ask it; their Python is seen, too.
    """

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self._processes = processes
        self._pythons: dict[int, Python] = {}
        self._asking: set[int] = set()  # what started clients
        self.begun = time.time()
        self.first: Job | None = None
        self.client: Job | None = None

    def python(self, *, asks: bool = False) -> Python | None:
        """The one that worked most, of several that ran in turns or in each other; None: none."""
        worked = Counter[str]()
        pythons = [one for one in list(self._pythons.values()) if one.asks == asks]
        for one in pythons:
            worked[one.program] += one.ticks
        return max(pythons, key=lambda one: worked[one.program], default=None)

    @contextmanager
    def started(self, job: Job) -> Iterator[Started]:
        """See `Processes`."""
        with self._processes.started(job) as process:
            if self.first is None:
                self.first = job
            elif job.command != self.first.command:
                self.client = job
                self._asking.add(process.process)
            else:
                yield process
                return
            if job.preload and (fork := process.command) is not None:
                self._pythons[process.process] = Python.of(fork, job)
            ended = threading.Event()
            watching = threading.Thread(target=self._watch, args=(process.process, ended))
            watching.start()
            try:
                yield process
            finally:
                ended.set()
                watching.join()

    def _watch(self, launcher: int, ended: threading.Event) -> None:
        pause = _LEAST_PAUSE_S
        while not ended.wait(pause):
            pause = min(1.1 * pause, _MOST_PAUSE_S)
            for number in descendants(launcher):
                with suppress(OSError):
                    self._note(number, launcher)

    def _note(self, number: int, launcher: int) -> None:
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
        word, *words = os.fsdecode(line).split("\0")[:-1]
        program = _program(word, executable, variables, where := os.readlink(folder / "cwd"))
        known = self._pythons.get(number)
        # A process may change its name, and then no longer says how it was called.
        if known is None or program != executable:
            known = Python(program, words, where, variables, launcher in self._asking)
            self._pythons[number] = known
        known.ticks = sum(map(int, stat_of(number)[11:13]))


def _program(word: str, executable: str, variables: dict[str, str], folder: str) -> str:
    """The name by which a Python was called, which tells its environment; else its file."""
    called = shutil.which(word, path=variables.get("PATH", os.defpath)) if "/" not in word else word
    with suppress(OSError):
        named = os.path.normpath(Path(folder, called or ""))
        if Path(named).samefile(executable):
            return named
    return executable
