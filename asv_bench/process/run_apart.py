"""Run a process in a session of its own, and end the session with it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from asv_bench.errors import TimeIsUp
from asv_bench.output.record import REPOSITORY
from asv_bench.output.redaction import without_known_secrets
from asv_bench.process.environment import measured_environment


def run_apart(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a measuring process in the repository's root to its end and return its output.

    It gets the threads of any measured process. Ctrl-C here ends it and all that it started.
    """
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**measured_environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, complained = process.communicate()
    finally:
        # With those that it started, such as compilers.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(list(command), process.returncode, said, complained)


def last_words(text: str, lines: int = 8) -> str:
    """The last lines of what a process said."""
    said = [line for line in text.splitlines() if line.strip()]
    return without_known_secrets("\n".join(said[-lines:])) or "it said nothing"


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM, which a job's scheduler sends, into the KeyboardInterrupt of Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ending_in_time(seconds: float | None) -> Iterator[None]:
    """Raise TimeIsUp in this thread, the main one, after so many seconds; None: never."""

    is_over = False

    def end(*_: object) -> None:
        if not is_over:
            raise TimeIsUp

    if seconds is None:
        yield
        return
    # The system has one timer, which may be that of whoever called.
    told = threading.get_ident(), signal.SIGALRM
    timer = threading.Timer(max(0.0, seconds), signal.pthread_kill, told)
    timer.daemon = True
    before = signal.signal(signal.SIGALRM, end)
    try:
        timer.start()
        yield
    finally:
        is_over = True
        timer.cancel()
        # A signal on its way still meets this handler: another may end the process.
        timer.join()
        signal.signal(signal.SIGALRM, before)
