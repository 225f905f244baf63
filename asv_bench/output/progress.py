"""How far a command is and how long the rest takes: a bar, or lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console

from asv_bench.output.console import Verbosity, verbosity

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Shows what is done, how much of it, and how long the rest takes.

    On a terminal that is a bar, drawn only when something has happened: drawing while something is
    measured would be measured too. Elsewhere it is a plain line at the beginning, and then one
    every half minute at most. `total` is None where it is not known yet.
    """

    def __init__(
        self, console: Console, what: str, total: int | None = None, unit: str = "processes"
    ) -> None:
        self._console, self._what, self._total, self._unit = console, what, total, unit
        self._is_quiet = verbosity() is Verbosity.QUIET
        self._done = 0
        # When the first of those that are counted was done, and how many were done then.
        self._since: tuple[float, int] | None = None
        self._seconds_left: float | None = None
        self._preparing = ""
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(bar_width=20),
            rich_progress.TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=self._is_quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Progress:
        self._begun = self._said_at = time.monotonic()
        self._bar.start()
        counted = "" if self._total is None else f": {self._total} {self._unit}"
        self._tell(f"{self._what}{counted}")
        _shown.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _shown.remove(self)
        self._bar.stop()

    def show(
        self,
        done: int,
        what: str | None = None,
        *,
        total: int | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Say how many are done, what is being done and how many there will be; None: no change.

        `seconds_left` is how long the rest takes, where the caller knows better than by the mean of
        those done.
        """
        if done == 0:
            self._since = None
        elif self._since is None:
            # What comes before the first, such as compiling, says nothing of the others, and all
            # before it may be those of an earlier run.
            self._since = (time.monotonic(), done)
        self._done = done
        self._what = what or self._what
        self._total = total or self._total
        self._seconds_left = seconds_left
        self._preparing = ""
        self._tell()

    def advance(self, what: str | None = None) -> None:
        """Say that one more is done."""
        self.show(self._done + 1, what)

    def name(self, what: str) -> None:
        """Say what is being done."""
        self.show(self._done, what)

    def left(self) -> str:
        """How long the rest takes, in words; empty if that is unknown."""
        seconds = self._seconds_left
        if seconds is None:
            if self._total is None or self._since is None or self._done <= self._since[1]:
                return ""
            at, before = self._since
            each = (time.monotonic() - at) / (self._done - before)
            seconds = each * max(0, self._total - self._done)
        return f"about {clock(seconds)} left"

    def prepare(self, what: str) -> None:
        """Say what is prepared; "": that is over."""
        self._preparing = what
        self._tell()

    def _line(self) -> str:
        gone = f"{clock(time.monotonic() - self._begun)} gone"
        count = str(self._done) if self._total is None else f"{self._done} of {self._total}"
        counted = f"{count} {self._unit}" if self._done or self._total else ""
        parts = (counted, gone, self.left())
        return f"{self._preparing or self._what}: {', '.join(filter(None, parts))}"

    def _tell(self, line: str = "") -> None:
        """Draw the bar; or print this line, or else the usual one where the last was long ago."""
        if not self._bar.disable:
            self._bar.update(
                self._task,
                refresh=True,
                completed=self._done,
                total=self._total,
                description=self._line(),
            )
        elif line or time.monotonic() - self._said_at >= SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            if not self._is_quiet:
                said = line or self._line()
                self._console.print(said, markup=False, highlight=False, soft_wrap=True)


_shown: list[Progress] = []


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say, from any thread, that something is prepared meanwhile, such as "setting up 1a2b3c4d"."""
    for progress in _shown[-1:]:
        progress.prepare(what)
    try:
        yield
    finally:
        for progress in _shown[-1:]:
            progress.prepare("")


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours = f"{minutes // 60}:{minutes % 60:02d}" if minutes >= 60 else str(minutes)
    return f"{hours}:{rest:02d}"
