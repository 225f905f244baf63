"""Every table that a command prints fits 80 columns, with its names and figures whole."""

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
from asv_bench.explain.profile_child import Decoded
from asv_bench.explain.profile_tables import window_tables
from asv_bench.explain.trace import DeviceTime, RangeTime, TraceSummary, WorkTime
from asv_bench.explain.traced import Traced
from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.table import history_tables
from asv_bench.output.console import LEAST_WIDTH
from asv_bench.output.figure_rows import figure_rows, figure_table
from asv_bench.output.table import Table
from asv_bench.pages.report_sections import step_table
from asv_bench.run.report import headline_table
from asv_bench.studies.ladder.ladder_tables import COUNTERS, claim_table, rung_table

NAMES = [
    "scheduler.Scheduler.track_decode_seconds_per_token('gpt2-tiny')",
    "streaming.StreamingLatency.track_ttft('gpt2-tiny', 'p99')",
    "kernels.PrefillAttention.track_time('gpt2-b64-c512')",
]
SUBJECT = "Take parts of the engine from wherever the measured commit happens to have them today"
HASHES = [f"{number:08x}" + "0" * 32 for number in range(0xABC0, 0xABC3)]
Made = tuple[Table, list[str]]
"""A table, and what must be in one piece in one line."""


def compared() -> Made:
    comparisons = [
        Comparison(
            name,
            HASHES[0],
            HASHES[1],
            Verdict.INCONCLUSIVE,
            effect=0.1234,
            interval=(-0.1234, 0.2345),
            confidence=0.95,
            p=0.00012,
            pairs_used=24,
            pairs_discarded=12,
            base_value=1.3e-3,
            head_value=1.4e-3,
        )
        for name in NAMES
    ]
    units = dict.fromkeys(NAMES, "seconds")
    title = f"{HASHES[1][:8]} against {HASHES[0][:8]} on AMD EPYC 9B14 96-Core Processor, 2 cores"
    table = comparison_table(comparisons, units, title, ComparisonPlan())
    return table, [*NAMES, "-12.34 % to +23.45 %", "24 (+12 discarded)", "inconclusive"]


def bisected() -> Made:
    commits = [Commit(one, SUBJECT, "Somebody") for one in HASHES]
    finding = Finding(
        outcome=Outcome.FOUND,
        direction=Direction.REGRESSION,
        benchmark=NAMES[0],
        good=HASHES[0],
        bad=HASHES[2],
        reason="",
        gate=Comparison(NAMES[0], HASHES[0], HASHES[2], Verdict.SLOWER),
        suspects=(HASHES[1],),
        probability=0.99,
        posterior=dict.fromkeys(HASHES, 0.33),
        unmeasurable={HASHES[2]: "it cannot be built"},
        curve=(CurvePoint(HASHES[1], 0.1234, (0.1111, 0.1357), 24),),
    )
    table = commit_table(finding, commits)
    return table, [*(one[:8] for one in HASHES), "cannot be measured", "+12.34 %", "33.0 %"]


def figures(commit: str) -> list[Figure]:
    def figure(name: str, unit: str = "seconds", **params: str) -> Figure:
        samples = (1.234567, 1.334567, 1.434567)
        return Figure(Series(name, tuple(params.items())), unit, "own", commit, 0, samples, 0)

    return [
        *(
            figure(f"scheduler.Scheduler.track_{one}", model="gpt2-tiny")
            for one in ("step_time", "tpot", "ttft", "seconds_per_token", "time_over_floor")
        ),
        figure("streaming.StreamingLatency.track_itl", model="gpt2-tiny", percentile="p99"),
        figure("decode.Decode.track_step_time", model="gpt2-tiny", batch="256", context="900"),
        figure("kernels.DecodeAttention.track_time", shape="gpt2-b64-c512"),
        figure("counters.Steps.track_copied_bytes", unit="bytes", path="graph", batch="64"),
    ]


def benchmarked() -> Made:
    title = f"{HASHES[0][:8]} on AMD EPYC (random:gpt2-tiny, float32; 1 thread; torch 2.13.0+cpu)"
    table = figure_table(figure_rows(figures(HASHES[0])), title)
    return table, ["1.33 s", "±3.7 %", "decode, context 900", "decode attention, gpt2-b64-c512"]


def past() -> Made:
    both = [*figures(HASHES[0]), *figures(HASHES[1])]
    (table,) = history_tables(both, [Commit(one) for one in HASHES[:2]])
    return table, [*(one[:8] for one in HASHES[:2]), "1.33 s", "+0.0 %"]


def headlines(engine: str = "transformers-dynamic") -> Made:
    row = {"workload": "streaming-small", "engine": engine, "batch": 256}
    times = ("step_ms", "ttft_ms", "tpot_ms", "itl_p99_ms", "floor_ms")
    row |= {**dict.fromkeys(times, 1234.567), "tokens_per_s": 1234567.0, "fraction_of_floor": 0.123}
    table = headline_table([row], "AMD EPYC, 1 thread")
    return table, ["streaming-small", "transformers-dynamic", "1,234,567", "1,234.567"]


def windows(device: DeviceTime | None) -> list[Table]:
    kernel = "vectorized_layer_norm_kernel_of_half_precision_and_more"
    summary = TraceSummary(
        [RangeTime("block_tables", 4, 45678.9, 45678.9, 40)],
        [WorkTime(kernel, 400, 45678.9, ("attention",))],
        [WorkTime(OPERATOR, 400, 45678.9)],
        WorkTime("outside", 4, 123.4),
        device,
    )
    return window_tables([Traced(Decoded(4, "eager", 1234.5), summary)])


def profiled(number: int, *wholes: str, device: DeviceTime | None = None) -> Made:
    return windows(device)[number], [*wholes]


def counted() -> Made:
    others = ("operators", "new_tensors", "new_bytes", "graph_replays", "launches")
    calls = ("copies_to_device", "copies_to_host", "engine_python_calls", "python_calls")
    names = (*others, *calls)
    steps = {"fused, 64 rows, across a block's boundary": dict.fromkeys(names, 1_234_567)}
    table = step_table(steps, "py3.11-torch2.13.0-triton3.7.1")
    return table, ["fused, 64 rows, across a block's boundary", "1,234,567"]


def climbed() -> Made:
    rung = {"rung": "12-append-for-the-whole-batch", "seed": "062", "step_ms": 12.345}
    rung |= {"same_requests": 64, "requests": 64, "counters": dict.fromkeys(COUNTERS, 1_234_567)}
    return rung_table([rung, rung], "ladder"), ["12-append-for-the-whole-batch", "1,234,567"]


def claimed() -> Made:
    figure = {"figure": "tpot_mean", "reported": {"change": 1.31}}
    figure |= {"change": 2.8, "interval": [2.72, 2.86]}
    claim = {"seed": "062", "what": "append kernels for the whole batch", "pairs": 24}
    claim |= {"base": "5-x", "head": "6-y", "as_claimed": True, "workload": "streaming"}
    claim |= {"figures": [figure], "finding": "not resolved"}
    plan = {"alpha": 0.002, "margin": 0.01, "confidence": 0.95}
    return claim_table([claim], plan, "claims"), ["not resolved", "+280 %"]


OPERATOR = "aten::native_layer_norm_backward_of_something_long"
MAKERS: dict[str, Callable[[], Made]] = {
    **{make.__name__: make for make in (compared, bisected, benchmarked, past, headlines)},
    **{make.__name__: make for make in (counted, climbed, claimed)},
    "profiled ranges": lambda: profiled(0, "block_tables", "11,419.7"),
    "profiled operators": lambda: profiled(1, OPERATOR, "100.00"),
    "profiled kernels": lambda: profiled(
        -1, "attention", "11,419.73", device=DeviceTime(9e4, 8e4, 400, 12)
    ),
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", MAKERS)
def test_a_table_fits(name: str, width: int) -> None:
    table, wholes = MAKERS[name]()
    shown = printed(table, width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width, shown
    assert "…" not in shown
    for whole in wholes:
        assert any(whole in line for line in lines), f"{whole} in\n{shown}"
    if name == "bisected":
        # Subjects are broken between their words only.
        assert set(SUBJECT.split()) <= set(re.findall(r"[A-Za-z]+", shown))


def test_the_widest_table_fits_a_file_a_line_a_row() -> None:
    shown = printed(headlines("kvtrail")[0], LEAST_WIDTH)
    assert max(map(len, shown.splitlines())) <= LEAST_WIDTH
    assert "…" not in shown
    assert sum(line.startswith("│") for line in shown.splitlines()) == 1
