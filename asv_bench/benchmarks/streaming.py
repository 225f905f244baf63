"""The `streaming` workload: when the tokens of 128 requests arrive, and how evenly."""

from __future__ import annotations

from .sharing import MODELS, OVER_FLOOR, OVER_TOKENS, STEP, OfWorkload, shared


class Streaming(OfWorkload):
    """Requests whose prompts differ in length, so that their positions differ."""

    workload = "streaming"
    track_seconds_per_token = shared("seconds_per_token", OVER_TOKENS)
    track_step_time = shared("step_time", STEP)
    track_time_over_floor = shared("time_over_floor", OVER_FLOOR, unit="floors")


class StreamingLatency(OfWorkload, model=MODELS, percentile=["p50", "p95", "p99"]):
    """Latencies of the same run: percentiles over requests, of ITL over gaps."""

    workload = "streaming"

    def named(self, figure: str, model: str, percentile: str) -> str:
        return figure if percentile == "p50" else f"{figure}_{percentile}"

    track_itl = shared("itl", "Gaps between consecutive tokens of a request.")
    track_tpot = shared("tpot", "Time per output token.")
    track_ttft = shared("ttft", "Time to first token.")
