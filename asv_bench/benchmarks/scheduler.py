"""The workloads that submit everything at once: `scheduler`, `wide` and `single`."""

from __future__ import annotations

from .sharing import OVER_FLOOR, OVER_TOKENS, STEP, OfWorkload, shared


class _Workload(OfWorkload):
    track_seconds_per_token = shared("seconds_per_token", OVER_TOKENS)
    track_step_time = shared("step_time", STEP)
    track_tpot = shared("tpot", "Time per output token: median over requests.")
    track_ttft = shared("ttft", "Time to first token: median over requests.")
    track_time_over_floor = shared("time_over_floor", OVER_FLOOR, unit="floors")


class Scheduler(_Workload):
    """64 requests of one prompt token."""

    workload = "scheduler"


class Wide(_Workload):
    """256 requests of 128 prompt tokens."""

    workload = "wide"


class Single(_Workload):
    """One request alone: latency with nothing to hide behind."""

    workload = "single"
