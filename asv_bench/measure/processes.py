"""Running the commands of a user: each ends, and all that it started ends with it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.command_line import PythonCommand
from asv_bench.measure.launcher import END, EVENTS, KILL, descendants
from asv_bench.output.record import REPOSITORY
from asv_bench.output.redaction import without_known_secrets
from asv_bench.process.environment import measured_environment

_FORK_SERVER = Path(__file__).with_name("forkserver.py")
_OF_ONE_LIFE = ("KVTRAIL_TREE", "KVTRAIL_OUT")
_RANK = re.compile(rb"(?:\A|\0)RANK=([0-9]{1,5})(?=\0)")
_LOOK_SECONDS = 1.0
_LONGEST_MS = 2**31 - 1  # of a wait of the kernel: 24 days
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))


class LifeFailed(MeasurementFailed):
    """A command did not end well; the message is a clause with what it said last.

    `code` is the exit code; negative where a signal ended it, None where it did not start or end.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class ForkServerGone(LifeFailed):
    """What was to fork a life ended before it did."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run: a line for the shell or program and arguments, where, and with what.

    `preload` names modules, as `forkserver` does: the command is then a fork of a Python that has
    imported them, if it starts a script or module of Python. `inherited` are descriptors that a
    command from scratch gets, `is_counted` says whether the kernel counts its instructions, and
    `given` is what lies at $KVTRAIL_RESULT before, where it leaves an `answer`.
    """

    command: str | tuple[str, ...]
    folder: Path
    variables: Mapping[str, str]
    cores: tuple[int, ...] = ()
    preload: tuple[str, ...] = ()
    inherited: tuple[int, ...] = ()
    is_counted: bool = False
    given: str = ""


@dataclass(eq=False)
class Ended:
    """What a command took: wall time, the largest process' memory; and what it printed.

    `cpu_seconds` and `counts` are of all that it started. A count below 0 is the kernel's error.
    """

    seconds: float = 0.0
    peak_rss_bytes: int = 0
    said: str = ""
    cpu_seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    by_rank: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The memory of each rank's largest process, by metric."""


class Started(Ended):
    """A process of a user's command, and all that it started; a server may fork it.

    What it took is known once all of it has ended.
    """

    def __init__(self, job: Job, said: IO[bytes], fork: tuple[ForkServer, PythonCommand] | None):
        super().__init__()
        self._said = said
        report, writing = os.pipe()
        reading, control = os.pipe()
        # Files, not numbers, which may be another file's once these are closed.
        self._report = os.fdopen(report, "rb", buffering=0)
        self._control = os.fdopen(control, "wb", buffering=0)
        self.code: int | None = None
        self.begun = time.perf_counter()
        self._server = fork[0] if fork else None
        self.command = fork[1] if fork else None
        self._launcher: subprocess.Popen[bytes] | None = None
        self.process = 0
        """The number of the process that started it."""
        try:
            if fork is None:
                line, cores = job.command, ",".join(map(str, job.cores))
                words = ("/bin/sh", "-c", line) if isinstance(line, str) else line
                self._launcher = subprocess.Popen(
                    [*_LAUNCHER, str(writing), str(reading), cores, "1" * job.is_counted, *words],
                    cwd=job.folder,
                    env=job.variables,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing, reading, *job.inherited),
                    # Ctrl-C at the terminal does not reach it.
                    start_new_session=True,
                )
                self.process = self._launcher.pid
            else:
                server, command = fork
                # Where it is gone nobody holds the report, which `await_begin` sees.
                with contextlib.suppress(OSError):
                    server.begin(command, job, (said.fileno(), writing, reading))
        except BaseException as error:
            self._report.close()
            self._control.close()
            if isinstance(error, OSError):
                raise LifeFailed(f"{job.folder}: {error.strerror}.") from None
            raise
        finally:
            os.close(writing)
            os.close(reading)

    def await_begin(self) -> None:
        """Wait until a fork has begun: its server imports what lives share first."""
        if self._server is None:
            return
        if not (said := self._report.readline()).endswith(b"\n"):
            words = self._server.last_words()
            # Killed a moment ago, it could still be asked; it is asked no more.
            self._server.close()
            raise ForkServerGone(f"the process that should fork it ended: {words}")
        self.process, self.begun = int(said), time.perf_counter()

    def memory_peaks(self) -> list[int]:
        """The most memory of each process of it, since this was asked last.

        `peak_rss_bytes` has the most of all that was seen, `by_rank` that of each rank, by metric.
        """
        peaks: list[int] = []
        for process in descendants(self.process):
            folder = Path(f"/proc/{process}")
            with contextlib.suppress(OSError):
                found = re.findall(r"^VmHWM:\s*(\d+)", (folder / "status").read_text(), re.M)
                peaks += [int(kib) << 10 for kib in found]
                if found and (rank := _RANK.search((folder / "environ").read_bytes())):
                    name = f"peak_rss_bytes@rank{int(rank[1])}"
                    self.by_rank[name] = (max(float(peaks[-1]), *self.by_rank.get(name, (0.0,))),)
                (folder / "clear_refs").write_text("5")
        self.peak_rss_bytes = max(self.peak_rss_bytes, *peaks, 0)
        return peaks

    def wait(self) -> int:
        """The exit code, once it and all that it started have ended."""
        if self.code is None:
            # It stays open: who is interrupted here waits once more, to end what is left.
            report = self._report.read().decode()
            # Of the launcher, where that was killed before it could report another.
            self.code = -signal.SIGKILL if self._launcher is None else self._launcher.wait()
            self._take(report)
        return self.code

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does so within some seconds."""
        if self.code is not None:
            return True
        poll = select.poll()
        poll.register(self._report, 0)  # which is closed once all have ended
        return bool(poll.poll(min(1e3 * within_s, _LONGEST_MS))) and self.wait() is not None

    def _take(self, report: str) -> None:
        """What the launcher says, as `supervise` has it; nothing where it was killed."""
        of_it, _, of_all = report.partition("\n")
        try:
            seconds, peak_kib, code = of_it.split(" ")
            self.seconds, self.code = float(seconds), int(code)
            self.peak_rss_bytes = max(self.peak_rss_bytes, int(peak_kib) * 1024)
            cpu_seconds, *counts = of_all.split(" ")
            self.cpu_seconds = float(cpu_seconds or 0)
            self.counts = dict(zip(EVENTS, map(int, counts), strict=False))
        except ValueError:
            if report:
                raise LifeFailed(report) from None

    def kill(self) -> None:
        """Kill it and all that it started, without waiting."""
        self._say(KILL)

    def ask_to_end(self) -> None:
        """Ask it and all that it started to end; what does not in time is killed."""
        self._say(END)
        self.wait()

    def end(self) -> None:
        """End it and all that it started."""
        self.kill()
        with self._control, self._report:
            self.wait()

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._control.write(word)

    def text(self) -> str:
        """All that it has printed so far."""
        return os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0).decode(
            errors="replace"
        )

    def failure(self) -> LifeFailed:
        """The error of a process that ended too early or with a bad exit code."""
        code = self.code or 0
        # A shell tells of a signal that ended its program by a code above 128.
        number = -code if code < 0 else code - 128
        ended = f"it ended with exit code {code}"
        if code < 0 or number in set(signal.Signals):
            ended = f"signal {number} ended it"
        return LifeFailed(f"{ended}: {last_words(self.text())}", code)


class Processes:
    """Starts the commands of lives, until it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Started] = set()
        self._beginning = threading.Lock()
        self._servers: dict[tuple[str, ...], ForkServer] = {}
        self._is_stopped = False

    @contextmanager
    def started(self, job: Job) -> Iterator[Started]:
        """A process that runs meanwhile; on leaving all of it is ended.

        Raises LifeFailed where it cannot be started, or nothing may be started any more.
        """
        with tempfile.TemporaryFile() as said, contextlib.ExitStack() as scope:
            try:
                process = scope.enter_context(self._begun(job, said))
            except ForkServerGone:  # another one forks the life
                process = scope.enter_context(self._begun(job, said))
            yield process

    @contextmanager
    def _begun(self, job: Job, said: IO[bytes]) -> Iterator[Started]:
        """A process from scratch, or a fork where it is to be one and starts a Python."""
        command = PythonCommand.of(job.command, job.variables) if job.preload else None
        fork = (self._server(command.program, job), command) if command else None
        with self._lock:
            if self._is_stopped:
                raise LifeFailed("measuring was stopped.")
            process = Started(job, said, fork)
            self._running.add(process)
        try:
            process.await_begin()
            yield process
        finally:
            # A process that was reaped must not be signalled: its number may be another's.
            with self._lock:
                self._running.discard(process)
            process.end()

    def _server(self, program: str, job: Job) -> ForkServer:
        """What forks lives of this Python; it ends when nothing is started any more."""
        key = program, *job.preload
        with self._beginning:
            server = self._servers.get(key)
            if server is None or server.has_ended:
                if server is not None:
                    server.close()
                server = self._servers[key] = ForkServer(program, job, self)
            return server

    def run(self, job: Job, timeout_s: float, *, looks: bool = False) -> Ended:
        """Run a command to its end; it may be looked which memory its ranks have meanwhile.

        Raises LifeFailed where it ends with another code than 0, not in time, or not at all.
        """
        with self.started(job) as process:
            deadline = process.begun + timeout_s
            while not process.has_ended(_LOOK_SECONDS if looks else timeout_s):
                if time.perf_counter() >= deadline:
                    words = last_words(process.text())
                    raise LifeFailed(f"it did not end within {timeout_s:g} s: {words}")
                process.memory_peaks()
            if process.code:
                raise process.failure()
            process.said = process.text()
            return process

    def answer(self, job: Job, timeout_s: float) -> Any:
        """The JSON that a command leaves at $KVTRAIL_RESULT; None: it left none. See `run`."""
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            result = Path(scratch) / "answer.json"
            if job.given:
                result.write_text(job.given, encoding="utf-8", errors="surrogatepass")
            told = {**job.variables, "KVTRAIL_RESULT": str(result)}
            self.run(replace(job, variables=told), timeout_s)
            return json.loads(result.read_bytes()) if result.is_file() else None

    def stop(self) -> None:
        """Kill what runs; nothing is started from then on."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.kill()
        for server in self._servers.values():
            server.close()


class ForkServer:
    """A Python that forks lives, `preload` in `[subject]`; see `forkserver`.

    It is one for all, so that what chance gave it (addresses, the seed of hashes) is the same for
    all. Of the first life's variables it has those that name no folder of a variant.
    """

    def __init__(self, program: str, job: Job, processes: Processes) -> None:
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
            words = (program, str(_FORK_SERVER), str(theirs.fileno()), *job.preload)
            folder, inherited = Path(tempfile.gettempdir()), (theirs.fileno(),)
            started = processes.started(Job(words, folder, variables, inherited=inherited))
            self._process = self._scope.enter_context(started)

    def begin(self, command: PythonCommand, job: Job, descriptors: tuple[int, int, int]) -> None:
        """Ask for a life. The descriptors get what it prints and what `launcher` reports, and tell.

        Raises OSError if the server has ended.
        """
        cores = job.cores or sorted(os.sched_getaffinity(0))
        told = {**asdict(job), **asdict(command), "variables": dict(job.variables), "cores": cores}
        with tempfile.TemporaryFile() as asked, self._lock:
            asked.write(json.dumps(told, default=str).encode())
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


def run_apart(
    command: Sequence[str],
    failing: str,
    variables: Mapping[str, str] | None = None,
    within_s: float = math.inf,
    **more: Any,
) -> Any:
    """What a command of ours, with `more` of `Job`, leaves at $KVTRAIL_RESULT, run in the
    repository's root.

    It gets the threads of any measured process. Where it fails, or does not end in so many
    seconds, MeasurementFailed says what is `failing`, and why.
    """
    told = {**measured_environment(), **(variables or {})}
    try:
        return Processes().answer(Job(tuple(command), REPOSITORY, told, **more), within_s)
    except LifeFailed as failure:
        raise MeasurementFailed(f"{failing}: {failure}") from None


def last_words(text: str, lines: int = 8) -> str:
    """The last lines of what a process said."""
    said = [line for line in text.splitlines() if line.strip()]
    return without_known_secrets("\n".join(said[-lines:])) or "it said nothing"
