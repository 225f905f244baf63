"""The exit code that verdicts come to."""

from __future__ import annotations

import pytest

from asv_bench.compare.verdict import Verdict
from asv_bench.session.exit_codes import ExitCode, exit_code, parse_gate

S, F, E, I, X, N = (  # noqa: E741
    Verdict.SLOWER,
    Verdict.FASTER,
    Verdict.EQUIVALENT,
    Verdict.INCONCLUSIVE,
    Verdict.FAILED,
    Verdict.NOT_MEASURED,
)


@pytest.mark.parametrize(
    ("verdicts", "gate", "code"),
    [
        ([E, F], "slower,inconclusive", ExitCode.GOOD),
        ([E, S, X, I], "slower,inconclusive", ExitCode.REGRESSION),
        ([E, I], "slower,inconclusive", ExitCode.INCONCLUSIVE),
        ([E, I], "slower", ExitCode.GOOD),
        ([S, I], "inconclusive", ExitCode.INCONCLUSIVE),
        ([S, I], "none", ExitCode.GOOD),
        ([E, X], "none", ExitCode.FAILED),
        ([N, N], "none", ExitCode.NOTHING_MEASURED),
        ([N, E], "slower,inconclusive", ExitCode.GOOD),
    ],
)
def test_exit_codes(verdicts: list[Verdict], gate: str, code: ExitCode) -> None:
    assert exit_code(verdicts, parse_gate(gate)) is code
    assert len({int(entry) for entry in ExitCode}) == 7
