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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from asv_bench.errors import MeasurementFailed
from asv_bench.process.run_apart import last_words, start_group
from asv_bench.subjects.launcher import END, KILL, descendants

_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))


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
        reading, control = os.pipe()
        # A file, not a number, which may be another file's once this one is closed.
        self._control = os.fdopen(control, "wb", buffering=0)
        self.code: int | None = None
        self.seconds = 0.0
        self.peak_rss_bytes = 0
        self.begun = time.perf_counter()
        with _on_cores(job.cores):
            try:
                self._process = start_group(
                    [*_LAUNCHER, str(writing), str(reading), *job.arguments],
                    cwd=job.folder,
                    env=job.variables,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing, reading),
                )
            except OSError as error:
                os.close(self._report)
                self._control.close()
                raise LifeFailed(f"{job.folder}: {error.strerror}.") from None
            finally:
                os.close(writing)
                os.close(reading)

    @property
    def process(self) -> int:
        """The number of the process that started it."""
        return self._process.pid

    def wait(self) -> int:
        """The exit code, once it and all that it started have ended."""
        if self.code is None:
            # Of the launcher, where that was killed before it could report another.
            self.code = self._process.wait()
            self._take_report()
        return self.code

    def has_ended(self) -> bool:
        """Whether it has ended; it does not wait."""
        return self._process.poll() is not None and self.wait() is not None

    def _take_report(self) -> None:
        """Seconds, memory and exit code, as the launcher says; nothing where it was killed."""
        with os.fdopen(self._report, "rb") as file:
            report = file.read().decode()
        try:
            seconds, peak_kib, code = report.split(" ")
            self.seconds, self.code = float(seconds), int(code)
            self.peak_rss_bytes = max(self.peak_rss_bytes, int(peak_kib) * 1024)
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
        self.wait()
        self._control.close()

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._control.write(word)

    def note_memory(self) -> None:
        """Take the memory of all that runs into the peak: a shell does not wait for all of it."""
        for process in descendants(self.process):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process}/status").read_text().split("\n")
                peak_kib = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
                self.peak_rss_bytes = max(self.peak_rss_bytes, int(peak_kib) * 1024)

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
