"""Turns of two processes that measure: each is asleep while the other works.

What else a machine does changes within seconds. Two processes that take turns of less than that
meet the same of it; two that run one after the other do not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

Measured = TypeVar("Measured")

TURNS_VARIABLE = "KVTRAIL_TURNS"
"""Names a process's own pipe and that of the other. Unset: it works alone."""

_GO, _GONE = b"+", b"!"


class Turns:
    """One process's turns. Alone, it never waits.

    `pipes` are its own, which says when it may work, and that of the other; None: there is no
    other.
    """

    def __init__(self, pipes: tuple[str, str] | None) -> None:
        # To be read and written, so that neither waits for the other to open its end.
        self._pipes = pipes and tuple(os.open(pipe, os.O_RDWR) for pipe in pipes)
        self.are_shared = pipes is not None

    def wait(self) -> None:
        """Sleep until the other has passed on, or is gone."""
        if self._pipes and os.read(self._pipes[0], 1) == _GONE:
            self._pipes = None

    def pass_on(self) -> None:
        """Let the other work."""
        if self._pipes:
            os.write(self._pipes[1], _GO)


@cache
def own_turns() -> Turns:
    """This process's turns, as its environment has them."""
    mine, _, theirs = os.environ.get(TURNS_VARIABLE, "").partition(os.pathsep)
    return Turns((mine, theirs) if theirs else None)


class SharedTurns:
    """The pipes between two processes, for whoever starts them.

    `variables` are those of the process that works first, and those of the other.
    """

    def __init__(self, folder: Path) -> None:
        pipes = [str(folder / name) for name in ("first", "second")]
        for pipe in pipes:
            os.mkfifo(pipe)
        self._descriptors = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        self.variables = tuple(
            {TURNS_VARIABLE: os.pathsep.join(one)} for one in (pipes, pipes[::-1])
        )
        os.write(self._descriptors[0], _GO)

    def leave(self, number: int) -> None:
        """Let the other process work alone: that of this number, 0 or 1, has ended."""
        os.write(self._descriptors[1 - number], _GONE)

    def close(self) -> None:
        """Give the pipes up."""
        for descriptor in self._descriptors:
            os.close(descriptor)


@contextmanager
def shared_turns() -> Iterator[SharedTurns]:
    """Pipes for two processes, in a folder that goes when this is left."""
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as folder:
        turns = SharedTurns(Path(folder))
        try:
            yield turns
        finally:
            turns.close()


def in_turns(measure: Callable[[int, Mapping[str, str]], Measured]) -> list[Measured]:
    """What two processes measure at the same time, of which one at a time works.

    `measure` is called with 0 for the process that works first and 1 for the other, in two threads,
    and with the variables that the process needs; it returns when the process has ended.
    """

    def run(number: int) -> Measured:
        try:
            return measure(number, turns.variables[number])
        finally:
            turns.leave(number)

    with shared_turns() as turns, ThreadPoolExecutor(1) as pool:
        second = pool.submit(run, 1)
        return [run(0), second.result()]
