"""Where the clients that people use leave their figures."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A figure in a client's JSON: keys with dots between, as in `[metrics.NAME]`."""

    path: str
    unit: str
    better: Literal["lower", "higher"] = "lower"


_VLLM = {
    "ttft_ms": Place("median_ttft_ms", "ms"),
    "tpot_ms": Place("median_tpot_ms", "ms"),
    "itl_ms": Place("median_itl_ms", "ms"),
    "itl_p99_ms": Place("p99_itl_ms", "ms"),
    "request_throughput": Place("request_throughput", "requests/s", "higher"),
    "output_throughput": Place("output_throughput", "tokens/s", "higher"),
}
_GUIDELLM = "benchmarks.0.metrics"
PRESETS = MappingProxyType(
    {
        "vllm-bench": _VLLM,
        "sglang-bench": _VLLM,
        "guidellm": {
            "ttft_ms": Place(f"{_GUIDELLM}.time_to_first_token_ms.successful.median", "ms"),
            "tpot_ms": Place(f"{_GUIDELLM}.time_per_output_token_ms.successful.median", "ms"),
            "itl_ms": Place(f"{_GUIDELLM}.inter_token_latency_ms.successful.median", "ms"),
            "request_throughput": Place(
                f"{_GUIDELLM}.requests_per_second.successful.mean", "requests/s", "higher"
            ),
            "output_throughput": Place(
                f"{_GUIDELLM}.output_tokens_per_second.successful.mean", "tokens/s", "higher"
            ),
        },
        "aiperf": {
            "ttft_ms": Place("time_to_first_token.p50", "ms"),
            "itl_ms": Place("inter_token_latency.p50", "ms"),
            "request_throughput": Place("request_throughput.avg", "requests/s", "higher"),
            "output_throughput": Place("output_token_throughput.avg", "tokens/s", "higher"),
        },
    }
)
"""Metrics by the name that `preset` has in `[client]`."""
