"""Figures that contradict each other are named, and plausible ones are left in peace."""

from __future__ import annotations

import math
from typing import Any

import pytest

from asv_bench.cli.headline import process_contradictions as in_headline
from asv_bench.explain.profile_child import Decoded
from asv_bench.explain.profile_tables import contradictions as in_profile
from asv_bench.explain.trace import DeviceTime, RangeTime, TraceSummary, WorkTime
from asv_bench.explain.traced import Traced
from asv_bench.history.asv_results import Figure, Series
from asv_bench.history.history_session import process_contradictions as in_asv
from asv_bench.output.contradictions import ratio_sentence, skew_sentences, spread_sentences
from asv_bench.run.measure import ModeResult
from asv_bench.run.report import contradictions as in_runs
from asv_bench.workloads.run_sample import RequestTrace, RunSample


def run_of(step_s: float, tokens: int = 40, stall_s: float = 0.0) -> RunSample:
    times = [step_s * (index + 1) + (stall_s if index > 20 else 0.0) for index in range(tokens)]
    trace = RequestTrace(0.0, list(range(tokens)), times, "length")
    return RunSample("online", 0.0, times[-1], tokens - 1, [trace])


def result_of(*runs: RunSample) -> ModeResult:
    return ModeResult("online", list(runs), 1.0, None, None)


def test_runs_or_averages_that_disagree_are_named_with_what_to_do() -> None:
    assert in_runs(result_of(run_of(1.3e-3), run_of(1.31e-3), run_of(1.4e-3))) == []
    said = in_runs(result_of(run_of(1.3e-3), run_of(1.3e-3), run_of(54e-3)))
    assert "runs that measured the same disagree" in said[0]
    assert "online decode step is 1.3 to 54 ms" in said[0]
    assert "measure again" in said[0]
    (tpot_or_itl,) = in_runs(result_of(run_of(1e-3, stall_s=0.05)))
    assert "the p50 of online ITL, ms, is 1 and its mean 2.282" in tpot_or_itl


def test_two_figures_of_one_thing_are_compared() -> None:
    assert ratio_sentence(("the decode step", 2.0), ("TPOT", 2.5), "ms") == []
    (sentence,) = ratio_sentence(("the decode step", 2.0), ("TPOT", 30.0), "ms")
    assert "the decode step is 2 ms and TPOT 30 ms" in sentence


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [0.0, 5.0], [1.0, math.inf]])
def test_nothing_is_said_of_what_cannot_be_compared(values: list[float]) -> None:
    assert spread_sentences({"step": values}) == []
    assert skew_sentences({"step": (math.nan, 1.0)}) == []


def test_the_worst_are_listed_and_the_rest_counted() -> None:
    values = {f"figure {number}": [1.0, 2.0 + number] for number in range(6)}
    (sentence,) = spread_sentences(values, "processes", "ms")
    assert "figure 5 is 1 to 7 ms; figure 4" in sentence
    assert "figure 0" not in sentence
    assert "and 3 more figures" in sentence


def traced(step_us: float, forward_us: float, device_us: float | None = None) -> Traced:
    device = None if device_us is None else DeviceTime(4 * device_us, 4 * device_us, 8, 0)
    ranges = [RangeTime("forward", 4, 4 * forward_us), RangeTime("attention", 8, 10.0)]
    summary = TraceSummary(ranges, [], [], WorkTime("outside", 0, 0.0), device)
    return Traced(Decoded(4, "eager", step_us), summary)


def test_a_range_longer_than_its_step_or_its_device_is_named() -> None:
    (sentence,) = in_profile(traced(1300.0, 76_000.0))
    assert "the range forward takes 76,000.0 µs" in sentence
    assert "1,300.0 µs" in sentence
    assert in_profile(traced(1300.0, 1500.0)) == []
    assert in_profile(traced(300.0, 76_000.0, device_us=290.0)) == []
    (sentence,) = in_profile(traced(300.0, 10.0, device_us=9000.0))
    assert "a kernel or copy is running takes 9,000.0 µs" in sentence


def test_processes_that_disagree_are_named_whoever_ran_them() -> None:
    def figure(*samples: float) -> Figure:
        series = Series("scheduler.Scheduler.track_step_time", (("model", "gpt2-tiny"),))
        return Figure(series, "seconds", "own", "c" * 40, 0, samples, 0)

    assert in_asv([figure(1.0, 1.1)]) == []
    (sentence,) = in_asv([figure(1.0, 1.1, 42.0)])
    assert "scheduler.Scheduler.track_step_time('gpt2-tiny') of cccccccc is 1 to 42" in sentence

    def row(step_ms: float) -> dict[str, Any]:
        return {"engine": "kvtrail", "workload": "wide", "step_ms": step_ms}

    assert in_headline([row(1.0), row(1.1)]) == []
    (sentence,) = in_headline([row(1.3), row(54.0)])
    assert "the step of wide is 1.3 to 54 ms" in sentence
