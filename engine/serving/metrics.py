"""What the server has done, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from engine.scheduling.load import EngineLoad

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
_ITL_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02),
    *(0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)


class Histogram:
    """Counts of seconds up to each bound, and of those beyond the last."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `seconds`, as often as it came."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._total += seconds * times

    def lines(self, name: str, what: str) -> Iterator[str]:
        """Its part of the text."""
        yield from _head(name, "histogram", what)
        so_far = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{le="{bound}"}} {so_far}'
        yield f"{name}_sum {self._total}"
        yield f"{name}_count {so_far}"


class Metrics:
    """Counts over the server's life.

    Attributes
    ----------
    ttft, itl
        Seconds from a request to its first token, and from each token of it to the next, as the
        engine saw them.
    ends
        Requests by how they ended: "stop", "length", "abort" and "error".
    replies
        Replies by status code.
    num_new_tokens
        Tokens generated.
    """

    def __init__(self) -> None:
        self.ttft = Histogram(_TTFT_S)
        self.itl = Histogram(_ITL_S)
        self.ends: Counter[str] = Counter()
        self.replies: Counter[int] = Counter()
        self.num_new_tokens = 0

    def text(self, load: EngineLoad | None) -> str:
        """All of it; `load` is None while there is no engine."""
        return "\n".join((*self._lines(load), ""))

    def _lines(self, load: EngineLoad | None) -> Iterator[str]:
        if load is not None:
            yield from _one("requests_running", "gauge", "In the batch.", load.num_running)
            yield from _one("requests_waiting", "gauge", "In the queue.", load.num_waiting)
            usage = "Share of KV blocks that unfinished requests hold, of 1."
            yield from _one("cache_usage", "gauge", usage, load.cache_usage)
            admitted = "Tokens of admitted requests."
            yield from _one("prompt_tokens_total", "counter", admitted, load.num_prompt_tokens)
            found = "Those of them that the prefix cache had."
            yield from _one("prefix_hit_tokens_total", "counter", found, load.num_cached_tokens)
        made = "Tokens generated."
        yield from _one("generation_tokens_total", "counter", made, self.num_new_tokens)
        yield from _counted("requests_total", "Ended requests.", "finished", self.ends)
        yield from _counted("http_replies_total", "Replies.", "status", self.replies)
        first = "Seconds from a request to its first token."
        yield from self.ttft.lines("kvtrail_time_to_first_token_seconds", first)
        gap = "Seconds from a token of a request to the next."
        yield from self.itl.lines("kvtrail_inter_token_latency_seconds", gap)


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _one(name: str, kind: str, what: str, value: float) -> Iterator[str]:
    yield from _head(f"kvtrail_{name}", kind, what)
    yield f"kvtrail_{name} {value}"


def _counted(
    name: str, what: str, label: str, counts: Counter[str] | Counter[int]
) -> Iterator[str]:
    yield from _head(f"kvtrail_{name}", "counter", what)
    for value, count in counts.items():
        yield f'kvtrail_{name}{{{label}="{value}"}} {count}'
