"""The step time of a run: read while all requests decode, however their tokens come."""

from __future__ import annotations

import pytest

from asv_bench.benchmarks.engine_runs import steady_step_s
from asv_bench.workloads.run_sample import RequestTrace, RunSample


def trace(times: list[float]) -> RequestTrace:
    return RequestTrace(0.0, [1] * len(times), times, "length")


def run_of(*traces: RequestTrace) -> RunSample:
    return RunSample("offline", 0.0, 100.0, 50, list(traces))


def test_step_time_is_read_while_all_requests_decode() -> None:
    # Steps take 1 s alone and 2 s together, from t = 200 to t = 240.
    alone = [float(t) for t in range(200)]
    together = [200.0 + 2 * step for step in range(21)]
    first = trace(alone + together)
    second = trace(together + [240.0 + step for step in range(1, 200)])
    assert steady_step_s(run_of(first, second)) == pytest.approx(2.0)


def test_step_time_does_not_depend_on_how_tokens_are_bunched() -> None:
    steps = [0.5 * step for step in range(64)]
    # The same steps, their tokens handed out eight at a time.
    bunched = [0.5 * (8 * (step // 8) + 7) for step in range(64)]
    assert steady_step_s(run_of(trace(steps))) == pytest.approx(0.5)
    assert steady_step_s(run_of(trace(bunched))) == pytest.approx(0.5)


def test_step_time_needs_requests_that_decode_together() -> None:
    with pytest.raises(ValueError, match="fewer than 8 steps"):
        steady_step_s(run_of(trace([0.0, 1.0, 2.0]), trace([50.0, 51.0])))
