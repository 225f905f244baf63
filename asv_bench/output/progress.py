"""How far a command is and how long the rest takes: a line that changes, or one now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from asv_bench.output.console import Verbosity, print_sentences, verbosity

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Says what is done, how much of it, and how long the rest takes.

    On a terminal that is a line, drawn anew only when something has happened: drawing while
    something is measured would be measured too. Elsewhere it is printed at the beginning, and then
    every half minute at most. `total` is None where it is not known yet.
    """

    def __init__(
        self, console: Console, what: str, total: int | None = None, unit: str = "processes"
    ) -> None:
        self._console, self._what, self._total, self._unit = console, what, total, unit
        self._done = 0
        # When the first of those that are counted was done, and how many were done then.
        self._since: tuple[float, int] | None = None
        self._preparing = ""
        self._drawn = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        self._begun = self._said_at = time.monotonic()
        if self._console.is_terminal and verbosity() is not Verbosity.QUIET:
            self._drawn.start()
        self._tell(f"{self._what}{f': {self._total} {self._unit}' if self._total else ''}")
        _shown.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _shown.remove(self)
        self._drawn.stop()

    def show(
        self, done: int | None = None, what: str | None = None, *, total: int | None = None
    ) -> None:
        """Say how many are done, what is being done and how many there will be; None: no change."""
        if done == 0:
            self._since = None
        elif done and self._since is None:
            # What comes before the first, such as compiling, says nothing of the others, and all
            # before it may be those of an earlier run.
            self._since = (time.monotonic(), done)
        self._done = self._done if done is None else done
        self._what = what or self._what
        self._total = total or self._total
        self.prepare("")

    def advance(self, what: str | None = None) -> None:
        """Say that one more is done."""
        self.show(self._done + 1, what)

    def prepare(self, what: str) -> None:
        """Say what is prepared; "": that is over."""
        self._preparing = what
        self._tell()

    def _left(self) -> str:
        """How long the rest takes, in words; empty if that is unknown."""
        since = self._since
        if not (self._total and since and self._done > since[1]):
            return ""
        each = (time.monotonic() - since[0]) / (self._done - since[1])
        return f"about {clock(each * max(0, self._total - self._done))} left"

    def _line(self) -> str:
        gone = f"{clock(time.monotonic() - self._begun)} gone"
        count = f"{self._done} of {self._total}" if self._total else str(self._done)
        counted = f"{count} {self._unit}" if self._done or self._total else ""
        parts = (counted, gone, self._left())
        return f"{self._preparing or self._what}: {', '.join(filter(None, parts))}"

    def _tell(self, line: str = "") -> None:
        """Draw the line; or print this one, or else the usual where the last was long ago."""
        if self._drawn.is_started:
            self._drawn.update(Text(self._line(), overflow="ellipsis", no_wrap=True), refresh=True)
        elif line or time.monotonic() - self._said_at >= SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            if verbosity() is not Verbosity.QUIET:
                print_sentences(self._console, [line or self._line()])


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
