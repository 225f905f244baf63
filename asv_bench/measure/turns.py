"""Turns of two processes that measure: each is asleep while the other works.

What else a machine does changes within seconds. Two processes that take turns of less than that
meet the same of it; two that run one after the other do not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Measured = TypeVar("Measured")

TURNS_VARIABLE = "KVTRAIL_TURNS"
"""Names a process's own pipe and that of the other. Unset: it works alone."""

_GO, _GONE = b"+", b"!"


class Turns:
    """One process's turns, as its variables name them. Alone, it never waits."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        # Its own, which says when it may work, and that of the other.
        pipes = filter(None, variables.get(TURNS_VARIABLE, "").split(os.pathsep))
        # To be read and written, so that neither waits for the other to open its end.
        self._opened = self._pipes = tuple(os.open(pipe, os.O_RDWR) for pipe in pipes)
        self.are_shared = bool(self._opened)

    def wait(self) -> None:
        """Sleep until the other has passed on, or is gone."""
        if self._pipes and os.read(self._pipes[0], 1) == _GONE:
            self._pipes = ()

    def pass_on(self) -> None:
        """Let the other work."""
        if self._pipes:
            os.write(self._pipes[1], _GO)

    def close(self) -> None:
        """Let go of the pipes."""
        for descriptor in self._opened:
            os.close(descriptor)


@cache
def own_turns() -> Turns:
    """This process's turns, as its environment has them."""
    return Turns(os.environ)


def in_turns(measure: Callable[[int, Mapping[str, str]], Measured]) -> list[Measured]:
    """What two processes measure at the same time, of which one at a time works.

    `measure` is called with 0 for the process that works first and 1 for the other, in two threads,
    and with the variables that the process needs; it returns when the process has ended.
    """
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as folder:
        pipes = [os.path.join(folder, name) for name in ("first", "second")]
        for pipe in pipes:
            os.mkfifo(pipe)
        opened = [os.open(pipe, os.O_RDWR) for pipe in pipes]

        def run(number: int) -> Measured:
            own_first = pipes[::-1] if number else pipes
            try:
                return measure(number, {TURNS_VARIABLE: os.pathsep.join(own_first)})
            finally:
                os.write(opened[1 - number], _GONE)

        try:
            os.write(opened[0], _GO)
            with ThreadPoolExecutor(1) as pool:
                second = pool.submit(run, 1)
                return [run(0), second.result()]
        finally:
            for descriptor in opened:
                os.close(descriptor)
