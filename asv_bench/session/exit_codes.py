"""What the exit code of a command says."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused

NO_GATE = "none"
GATES = (Verdict.SLOWER, Verdict.INCONCLUSIVE, Verdict.DIFFERS)
"""Verdicts that a gate may be closed by."""


class ExitCode(IntEnum):
    """Every code that a command ends with."""

    GOOD = 0
    FAILED = 1
    REFUSED = 2
    REGRESSION = 3
    INCONCLUSIVE = 4
    NOTHING_MEASURED = 5
    OTHER_RESULT = 6
    INTERRUPTED = 130


def parse_gate(text: str) -> frozenset[Verdict]:
    """The verdicts that a comma-separated `--gate` names; Refused if it names anything else."""
    names = [name.strip() for name in text.split(",")]
    if names == [NO_GATE]:
        return frozenset()
    for name in names:
        if name not in GATES:
            raise Refused(
                f"--gate {text!r} names {name!r}; it takes {', '.join(GATES)} separated by "
                f"commas, or {NO_GATE}."
            )
    return frozenset(map(Verdict, names))


def gate_text(gate: Collection[Verdict]) -> str:
    """What `parse_gate` takes for these verdicts."""
    return ",".join(name for name in GATES if name in gate) or NO_GATE


def exit_code(verdicts: Collection[Verdict], gate: Collection[Verdict]) -> ExitCode:
    """The code for these verdicts; a proven regression outweighs a failure elsewhere.

    A result that differs outweighs both: no speed makes up for it. No gate lets a failure pass, or
    a comparison in which nothing was measured.
    """
    if Verdict.DIFFERS in verdicts and Verdict.DIFFERS in gate:
        return ExitCode.OTHER_RESULT
    if Verdict.SLOWER in verdicts and Verdict.SLOWER in gate:
        return ExitCode.REGRESSION
    if Verdict.FAILED in verdicts:
        return ExitCode.FAILED
    if all(verdict is Verdict.NOT_MEASURED for verdict in verdicts):
        return ExitCode.NOTHING_MEASURED
    if {Verdict.INCONCLUSIVE, Verdict.VOID}.intersection(verdicts) and Verdict.INCONCLUSIVE in gate:
        return ExitCode.INCONCLUSIVE
    return ExitCode.GOOD
