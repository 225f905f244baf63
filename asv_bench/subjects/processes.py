"""Running the commands of a user: each ends, and all that it started ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from asv_bench.errors import MeasurementFailed
from asv_bench.process.run_apart import kill_group, last_words, start_group

LIFE = "KVTRAIL_LIFE"
"""A variable by which the processes of a life are found that left its session."""
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))
GRACE_SECONDS = 10.0
"""For a server to end by itself."""


class LifeFailed(MeasurementFailed):
    """A command did not end well; the message is a clause with what it said last.

    Attributes
    ----------
    code
        The exit code; negative where a signal ended it, None where it did not start or end.
    """

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run: a line for the shell or program and arguments, where, and with what."""

    command: str | tuple[str, ...]
    folder: Path
    variables: Mapping[str, str]
    cores: tuple[int, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """What is started."""
        if isinstance(self.command, str):
            return ["/bin/sh", "-c", self.command]
        return list(self.command)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended with 0: wall time, the largest process' memory, and what it printed."""

    seconds: float
    peak_rss_bytes: int
    said: str


class Started:
    """A process of a user's command, and all that it started."""

    def __init__(self, job: Job, said: IO[bytes]) -> None:
        self._said = said
        self._report, writing = os.pipe()
        self._marker = uuid.uuid4().hex
        self.code: int | None = None
        self.seconds = 0.0
        self.peak_rss_bytes = 0
        self.begun = time.perf_counter()
        with _on_cores(job.cores):
            try:
                self._process = start_group(
                    [*_LAUNCHER, str(writing), *job.arguments],
                    cwd=job.folder,
                    env={**job.variables, LIFE: self._marker},
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing,),
                )
            except OSError as error:
                os.close(self._report)
                raise LifeFailed(f"{job.folder}: {error.strerror}.") from None
            finally:
                os.close(writing)

    def wait(self) -> int:
        """The exit code, once it has ended."""
        if self.code is None:
            self.code = self._process.wait()
            self._take_report()
        return self.code

    def has_ended(self) -> bool:
        """Whether it has ended; it does not wait."""
        return self._process.poll() is not None and self.wait() is not None

    def _take_report(self) -> None:
        """Seconds and memory, as the launcher says; nothing where it was killed."""
        with os.fdopen(self._report, "rb") as file:
            report = file.read().decode()
        seconds, _, peak_kib = report.partition(" ")
        if peak_kib.isdigit():
            self.seconds = float(seconds)
            self.peak_rss_bytes = max(self.peak_rss_bytes, int(peak_kib) * 1024)
        elif report:
            raise LifeFailed(report)

    def kill(self) -> None:
        """Kill it and all of its session; what left the session is left to `end`."""
        kill_group(self._process)

    def ask_to_end(self) -> None:
        """Ask the whole session to end, and give it a while."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self) -> None:
        """End it, its session, and processes of it that left the session."""
        self.kill()
        self.wait()
        for folder in self._folders():
            with contextlib.suppress(OSError):
                os.kill(int(folder.name), signal.SIGKILL)

    def note_memory(self) -> None:
        """Take the memory of all that runs into the peak: a shell does not wait for all of it."""
        for folder in self._folders():
            with contextlib.suppress(OSError, StopIteration):
                lines = (folder / "status").read_text().splitlines()
                peak_kib = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
                self.peak_rss_bytes = max(self.peak_rss_bytes, int(peak_kib) * 1024)

    def _folders(self) -> Iterator[Path]:
        """The folders in /proc of its processes, also of those that left its session."""
        marker = f"{LIFE}={self._marker}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    yield folder

    def text(self) -> str:
        """All that it has printed so far."""
        return os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0).decode(
            errors="replace"
        )

    def failure(self) -> LifeFailed:
        """What to say of it where it has ended and should not have, or not so."""
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
        self._is_stopped = False

    @contextmanager
    def started(self, job: Job) -> Iterator[Started]:
        """A process that runs meanwhile; on leaving all of it is ended.

        Raises
        ------
        LifeFailed
            If it cannot be started, or nothing may be started any more.
        """
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self._is_stopped:
                    raise LifeFailed("measuring was stopped.")
                process = Started(job, said)
                self._running.add(process)
            try:
                yield process
            finally:
                # A process that was reaped must not be signalled: its number may be another's.
                with self._lock:
                    self._running.discard(process)
                process.end()

    def run(self, job: Job, timeout_s: float) -> Ended:
        """Run a command to its end.

        Raises
        ------
        LifeFailed
            If it ends with another code than 0, not in time, or not at all.
        """
        with self.started(job) as process:
            is_late = threading.Event()

            def give_up() -> None:
                is_late.set()
                process.kill()

            # Not a wait with a timeout, which sleeps up to 50 ms between looks.
            alarm = threading.Timer(timeout_s, give_up)
            alarm.daemon = True
            alarm.start()
            try:
                code = process.wait()
            finally:
                alarm.cancel()
            if is_late.is_set():
                words = last_words(process.text())
                raise LifeFailed(f"it did not end within {timeout_s:g} s: {words}")
            if code:
                raise process.failure()
            return Ended(process.seconds, process.peak_rss_bytes, process.text())

    def stop(self) -> None:
        """Kill what runs; nothing is started from then on."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.kill()


@contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """What this thread starts meanwhile may use these cores; none: all that it may use itself."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
