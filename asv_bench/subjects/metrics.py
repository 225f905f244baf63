"""Metrics of a subject: those that its file declares, that clients leave, and that all have."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from asv_bench.measure.samples import Metric
from asv_bench.subjects.toml_values import Printed, Take, compiled

BUILT_IN = (
    Metric("wall_s", "seconds"),
    Metric("peak_rss_bytes", "bytes"),
    Metric("peak_gpu_bytes", "bytes"),
    Metric("cpu_s", "seconds"),
)
"""Metrics that every subject has."""
OF_WINDOWS = ("wall_s", "cpu_s")
"""Those of each run of a client; the first is compared where nothing is declared."""
READY, RSS_GROWTH = Metric("ready_s", "seconds"), Metric("rss_growth_bytes", "bytes")
"""Those of a server."""
COLD, WARM = Metric("ready_s@cold", "seconds"), Metric("ready_s@warm", "seconds")
POINT = "KVTRAIL_POINT"
"""Of a client's line, what each point of load is put in place of."""
ASKED_FOR = (Metric("instructions", ""), Metric("cycles", ""), COLD, WARM)
"""Those that are measured only where `--metric` gives the whole name."""


class MetricTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[metrics.NAME]`: where a life leaves a figure, as a number or as one for each window."""

    path: str = ""
    """Keys from the outermost in, with dots between, into the JSON of $KVTRAIL_RESULT."""
    regex: str = ""
    """With one group, searched for in what the life printed. Either this or `path` is given."""
    unit: Printed = ""
    """A word to print behind values."""
    better: Literal["lower", "higher"] = "lower"
    """Which of two values is better."""
    margin: Annotated[float, Meta(ge=0.1, le=50)] | None = None
    """The difference that matters, in per cent; without the key the command's."""
    take: Take = "median"
    """What of several windows is the life's figure: median, min, mean, or a percentile as p95."""
    control: bool = False
    """Whether no change can move it: where it moves, every verdict of the session is void."""

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.regex):
            raise ValueError("a metric needs either path or regex")
        if self.regex and (groups := compiled(self.regex).groups) != 1:
            raise ValueError(f"{self.regex!r} has {groups} groups; it needs one")

    def metric(self, name: str) -> Metric:
        """The metric that it declares."""
        margin = self.margin and self.margin / 100
        return Metric(name, self.unit, self.better, margin, self.take, self.control)


def _served(requests: str, tokens: str, **times: str) -> dict[str, MetricTable]:
    """Metrics of a client: the paths of its two rates, and of times in milliseconds."""
    return {
        **{name: MetricTable(path, unit="ms") for name, path in times.items()},
        "request_throughput": MetricTable(requests, unit="requests/s", better="higher"),
        "output_throughput": MetricTable(tokens, unit="tokens/s", better="higher"),
    }


_VLLM = _served(
    "request_throughput",
    "output_throughput",
    ttft_ms="median_ttft_ms",
    tpot_ms="median_tpot_ms",
    itl_ms="median_itl_ms",
    itl_p99_ms="p99_itl_ms",
)
_GUIDELLM = "benchmarks.0.metrics"
PRESETS = MappingProxyType(
    {
        "vllm-bench": _VLLM,
        "sglang-bench": _VLLM,
        "guidellm": _served(
            f"{_GUIDELLM}.requests_per_second.successful.mean",
            f"{_GUIDELLM}.output_tokens_per_second.successful.mean",
            ttft_ms=f"{_GUIDELLM}.time_to_first_token_ms.successful.median",
            tpot_ms=f"{_GUIDELLM}.time_per_output_token_ms.successful.median",
            itl_ms=f"{_GUIDELLM}.inter_token_latency_ms.successful.median",
        ),
        "aiperf": _served(
            "request_throughput.avg",
            "output_token_throughput.avg",
            ttft_ms="time_to_first_token.p50",
            itl_ms="inter_token_latency.p50",
        ),
    }
)
"""Where the clients that people use leave their figures, by the `preset` of `[client]`."""


class Requests(NamedTuple):
    """Where a client's JSON says what became of its requests; of several paths the first counts.

    `completed`, `failed` and `asked` are paths of numbers of requests.
    """

    completed: tuple[str, ...]
    failed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    errors: str = ""  # the path of a list with a text, or an object, for each failure
    printed: str = ""  # a regular expression for the number of requests that the client prints


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
"""Where they say what became of requests."""
