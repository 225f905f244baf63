"""How long a command may take: as its user says, or until the job of CI that runs it ends.

A command counts from when its process began to load the ruler, where `whole_process` says so.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from asv_bench.errors import TimeIsUp

_ENDING = 0.03
_MOST_ENDING_S = 20.0
"""Of the time, so much is left for the answer, and for processes that are asked to end."""
_begun: float | None = None


@contextmanager
def whole_process(begun: float) -> Iterator[None]:
    """Let limits count from when this process began, which is there for one command alone."""
    global _begun
    _begun = begun
    try:
        yield
    finally:
        _begun = None


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """When a command gives its best answer so far; it counts from `begun`."""

    seconds: float | None  # None: it takes as long as it takes
    whose: str = ""  # what the limit is called in a sentence
    begun: float = 0.0

    @classmethod
    def of(cls, minutes: float | None, environ: Mapping[str, str] = os.environ) -> Self:
        """That of `--minutes`; without it, that of the job, where its variables say it."""
        seconds, whose, begun = _of_job(environ), "the limit of this job", time.monotonic()
        if minutes is not None:
            seconds, whose, begun = 60.0 * minutes, "--minutes", _begun or begun
        if seconds is not None:
            seconds -= min(_ENDING * seconds, _MOST_ENDING_S)
        return cls(seconds, whose, begun)

    def left(self) -> float | None:
        """Seconds that are left."""
        if self.seconds is None:
            return None
        return max(0.0, self.begun + self.seconds - time.monotonic())


def _of_job(environ: Mapping[str, str]) -> float | None:
    """Seconds to the end of a job of Slurm or GitLab CI."""
    with suppress(KeyError, ValueError):
        return float(environ["SLURM_JOB_END_TIME"]) - time.time()
    with suppress(KeyError, ValueError):
        begun = datetime.fromisoformat(environ["CI_JOB_STARTED_AT"]).timestamp()
        return begun + float(environ["CI_JOB_TIMEOUT"]) - time.time()
    return None


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
