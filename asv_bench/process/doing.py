"""What this process was asked to do, and what it prepares, told to whoever shows how far it is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


def command_line(*without: str) -> str:
    """The command as it was typed, but for these words."""
    return shlex.join(["kvtrail", *(word for word in sys.argv[1:] if word not in without)])


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say that something is prepared meanwhile, such as "setting up 1a2b3c4d"."""
    _tell(what)
    try:
        yield
    finally:
        _tell("")


def listen(listener: Callable[[str], None]) -> None:
    """Let a function hear what is prepared, and "" when that is over; from any thread."""
    _listeners.append(listener)


def leave(listener: Callable[[str], None]) -> None:
    """Tell it nothing any more."""
    _listeners.remove(listener)


def _tell(what: str) -> None:
    for listener in _listeners[-1:]:
        listener(what)
