"""The `streaming` workload: when the tokens of 128 requests arrive, and how evenly."""

from __future__ import annotations

from typing import ClassVar

from asv_bench.workloads.named import WORKLOADS

from .engine_runs import MODELS, measure, require_model_here, sized_for
from .guard import check_identity
from .sharing import Samples, SharesRuns, shared_figure, tracked

PERCENTILES = ["p50", "p95", "p99"]


class Streaming(SharesRuns):
    """Requests whose prompts differ in length, so that their positions differ."""

    params = (MODELS,)
    param_names: ClassVar = ["model"]

    def setup(self, model: str) -> None:
        check_identity()
        require_model_here(model)

    @tracked()
    def track_seconds_per_token(self, model: str) -> Samples:
        """Wall time of the whole run over the token ids that it generated."""
        return _figure("seconds_per_token", model)

    @tracked()
    def track_step_time(self, model: str) -> Samples:
        """Seconds of one decode step while all requests decode."""
        return _figure("step_time", model)

    @tracked(unit="floors")
    def track_time_over_floor(self, model: str) -> Samples:
        """Step time over the time that reading its bytes takes on this GPU; 1 is the floor."""
        return _figure("time_over_floor", model)


class StreamingLatency(SharesRuns):
    """Latencies of the same run: percentiles over requests, of ITL over gaps."""

    params = (MODELS, PERCENTILES)
    param_names: ClassVar = ["model", "percentile"]

    def setup(self, model: str, percentile: str) -> None:
        check_identity()
        require_model_here(model)

    @tracked()
    def track_itl(self, model: str, percentile: str) -> Samples:
        """Gaps between consecutive tokens of a request."""
        return _figure(_named("itl", percentile), model)

    @tracked()
    def track_tpot(self, model: str, percentile: str) -> Samples:
        """Time per output token."""
        return _figure(_named("tpot", percentile), model)

    @tracked()
    def track_ttft(self, model: str, percentile: str) -> Samples:
        """Time to first token."""
        return _figure(_named("ttft", percentile), model)


def _named(metric: str, percentile: str) -> str:
    return metric if percentile == "p50" else f"{metric}_{percentile}"


def _figure(figure: str, model: str) -> Samples:
    workload = sized_for(WORKLOADS["streaming"], model)
    return shared_figure(f"{workload.name}-{model}", figure, lambda: measure(workload, model))
