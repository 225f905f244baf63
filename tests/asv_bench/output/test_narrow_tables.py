"""The tables that commands print most fit 80 columns, with their names and figures whole."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from printed_tables import printed

from asv_bench.bisect.account import commit_table
from asv_bench.bisect.finding import CurvePoint, Direction, Finding, Outcome
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import comparison_table
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import Commit
from asv_bench.output.console import LEAST_WIDTH
from asv_bench.output.table import Table
from asv_bench.run.report import headline_table

NAME = "scheduler.Scheduler.track_decode_seconds_per_token('gpt2-tiny')"
SUBJECT = "Take parts of the engine from wherever the measured commit happens to have them today"
HASHES = [f"{number:08x}" + "0" * 32 for number in range(0xABC0, 0xABC3)]
Made = tuple[Table, list[str]]
"""A table, and what must be in one piece in one line."""


def compared() -> Made:
    comparison = Comparison(
        NAME,
        HASHES[0],
        HASHES[1],
        Verdict.INCONCLUSIVE,
        effect=0.1234,
        interval=(-0.1234, 0.2345),
        p=0.00012,
        pairs_used=24,
        pairs_discarded=12,
        base_value=1.3e-3,
        head_value=1.4e-3,
    )
    title = f"{HASHES[1][:8]} against {HASHES[0][:8]} on AMD EPYC 9B14 96-Core Processor, 2 cores"
    table = comparison_table([comparison], {NAME: "seconds"}, title, ComparisonPlan())
    return table, [NAME, "-12.34 % to +23.45 %", "24 (+12 discarded)", "inconclusive"]


def bisected() -> Made:
    finding = Finding(
        outcome=Outcome.FOUND,
        direction=Direction.REGRESSION,
        benchmark=NAME,
        good=HASHES[0],
        bad=HASHES[2],
        reason="",
        gate=Comparison(NAME, HASHES[0], HASHES[2], Verdict.SLOWER),
        suspects=(HASHES[1],),
        probability=0.99,
        posterior=dict.fromkeys(HASHES, 0.33),
        unmeasurable={HASHES[2]: "it cannot be built"},
        curve=(CurvePoint(HASHES[1], 0.1234, (0.1111, 0.1357), 24),),
    )
    table = commit_table(finding, [Commit(one, SUBJECT, "Somebody") for one in HASHES])
    return table, [*(one[:8] for one in HASHES), "cannot be measured", "+12.34 %", "33.0 %"]


def headlines() -> Made:
    row = {"workload": "streaming-small", "engine": "kvtrail", "batch": 256}
    times = ("step_ms", "ttft_ms", "tpot_ms", "itl_p99_ms", "floor_ms")
    row |= {**dict.fromkeys(times, 1234.567), "tokens_per_s": 1234567.0, "fraction_of_floor": 0.123}
    return headline_table([row], "AMD EPYC, 1 thread"), ["streaming-small", "1,234,567"]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("make", [compared, bisected, headlines])
def test_a_table_fits(make: Callable[[], Made], width: int) -> None:
    table, wholes = make()
    shown = printed(table, width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width, shown
    assert "…" not in shown
    for whole in wholes:
        assert any(whole in line for line in lines), f"{whole} in\n{shown}"
    if make is bisected:
        # Subjects are broken between their words only.
        assert set(SUBJECT.split()) <= set(re.findall(r"[A-Za-z]+", shown))


def test_the_widest_table_fits_a_file_a_line_a_row() -> None:
    shown = printed(headlines()[0], LEAST_WIDTH)
    assert max(map(len, shown.splitlines())) <= LEAST_WIDTH
    assert "…" not in shown
    assert sum(line.startswith("│") for line in shown.splitlines()) == 1
