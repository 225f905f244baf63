"""A delay that is planted in lives, to see whether a comparison finds it."""

from __future__ import annotations

from dataclasses import dataclass

VARIABLE = "KVTRAIL_DELAY_S"
_LEAST_SECONDS = 0.001
"""Of a wait, also where no delay is planted: how late a sleep ends is then no part of the delay."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds that a life waits beyond its work; 0 for the lives it is compared with."""

    seconds: float
    is_told: bool
    """Whether the benchmark is told by a variable, to wait within what it times itself. If not, a
    wait follows its command, which lengthens the wall time only."""

    def variables(self) -> dict[str, str]:
        """What the life is told."""
        return {VARIABLE: f"{self.seconds:.9f}"} if self.is_told else {}

    def follow(self, command: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """A command, with the wait behind it if the benchmark is not told."""
        if self.is_told:
            return command
        wait = f"sleep {_LEAST_SECONDS + self.seconds:.9f}"
        if isinstance(command, str):
            return f"( {command}\n) && {wait}"
        return ("/bin/sh", "-c", f'"$@" && {wait}', "sh", *command)

    def __str__(self) -> str:
        how = "told delay" if self.is_told else "wait"
        return f"{how} of {self.seconds:.9f} s"
