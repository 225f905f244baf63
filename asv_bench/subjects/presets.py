"""Where the clients that people use leave their figures."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, NamedTuple


class ClientFigure(NamedTuple):
    """A figure in a client's JSON: keys with dots between, as in `[metrics.NAME]`."""

    path: str
    unit: str
    better: Literal["lower", "higher"] = "lower"


class Requests(NamedTuple):
    """Where a client's JSON says what became of its requests; of several paths the first counts.

    `completed`, `failed` and `asked` are paths of numbers of requests.
    """

    completed: tuple[str, ...]
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    errors: str = ""  # the path of a list with a text, or an object, for each failure
    printed: str = ""  # a regular expression for the number of requests that the client prints


_VLLM = {
    "ttft_ms": ClientFigure("median_ttft_ms", "ms"),
    "tpot_ms": ClientFigure("median_tpot_ms", "ms"),
    "itl_ms": ClientFigure("median_itl_ms", "ms"),
    "itl_p99_ms": ClientFigure("p99_itl_ms", "ms"),
    "request_throughput": ClientFigure("request_throughput", "requests/s", "higher"),
    "output_throughput": ClientFigure("output_throughput", "tokens/s", "higher"),
}
_GUIDELLM = "benchmarks.0.metrics"
PRESETS = MappingProxyType(
    {
        "vllm-bench": _VLLM,
        "sglang-bench": _VLLM,
        "guidellm": {
            "ttft_ms": ClientFigure(f"{_GUIDELLM}.time_to_first_token_ms.successful.median", "ms"),
            "tpot_ms": ClientFigure(
                f"{_GUIDELLM}.time_per_output_token_ms.successful.median", "ms"
            ),
            "itl_ms": ClientFigure(f"{_GUIDELLM}.inter_token_latency_ms.successful.median", "ms"),
            "request_throughput": ClientFigure(
                f"{_GUIDELLM}.requests_per_second.successful.mean", "requests/s", "higher"
            ),
            "output_throughput": ClientFigure(
                f"{_GUIDELLM}.output_tokens_per_second.successful.mean", "tokens/s", "higher"
            ),
        },
        "aiperf": {
            "ttft_ms": ClientFigure("time_to_first_token.p50", "ms"),
            "itl_ms": ClientFigure("inter_token_latency.p50", "ms"),
            "request_throughput": ClientFigure("request_throughput.avg", "requests/s", "higher"),
            "output_throughput": ClientFigure("output_token_throughput.avg", "tokens/s", "higher"),
        },
    }
)
"""Metrics by the name that `preset` has in `[client]`."""

# As its releases have named it, the latest first.
_TOTALS = ("metrics.request_totals", "request_totals", "run_stats.requests_made")
REQUESTS = MappingProxyType(
    {
        # Older releases do not count failures.
        "vllm-bench": Requests(("completed",), ("failed",), ("num_prompts",), "errors"),
        # Its file holds no number of requests, and with --output-details an error for each.
        "sglang-bench": Requests(
            ("completed",), ("failed",), ("num_prompts",), "errors", r"\bnum_prompts=([0-9]{1,9})\b"
        ),
        "guidellm": Requests(
            tuple(f"benchmarks.0.{place}.successful" for place in _TOTALS),
            tuple(f"benchmarks.0.{place}.errored" for place in _TOTALS),
        ),
        "aiperf": Requests(
            ("request_count.avg",), ("error_request_count.avg",), errors="error_summary"
        ),
    }
)
"""By the name of a preset."""
