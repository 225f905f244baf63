"""One run of a list of requests, and the metrics computed from its token times.

TTFT, TPOT, ITL, throughput and decode time are defined here and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from asv_bench.workloads.named import Workload

Mode: TypeAlias = Literal["naive", "online", "offline"]
MODES: tuple[Mode, ...] = get_args(Mode)
Latency: TypeAlias = Literal["ttft", "tpot", "itl", "latency"]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(slots=True)
class RequestTrace:
    """Times and tokens of one request, in `time.perf_counter()` seconds."""

    submitted_s: float
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token: submit to first token event; NaN without tokens."""
        return self.token_times_s[0] - self.submitted_s if self.token_times_s else float("nan")

    @property
    def tpot_s(self) -> float:
        """Time per output token: (last - first) / (tokens - 1); NaN below two tokens."""
        tokens = len(self.token_times_s)
        if tokens < 2:
            return float("nan")
        return (self.token_times_s[-1] - self.token_times_s[0]) / (tokens - 1)

    @property
    def itl_s(self) -> Floats:
        """Inter-token latencies: the gaps between consecutive token events, [tokens - 1]."""
        return np.diff(np.asarray(self.token_times_s, np.float64))

    @property
    def latency_s(self) -> float:
        """Submit to last token; NaN without tokens."""
        return self.token_times_s[-1] - self.submitted_s if self.token_times_s else float("nan")


@dataclass(frozen=True, slots=True)
class RunSample:
    """One run of a list of requests, with a trace for each in their order.

    `started_s` is of `time.perf_counter()`; `wall_s` ends with the last token. `decode_steps` are
    the steps in which a request got a token after its first.
    """

    mode: Mode
    started_s: float
    wall_s: float
    decode_steps: int
    traces: list[RequestTrace]

    @property
    def generated_tokens(self) -> int:
        """Token ids that the run generated."""
        return sum(len(trace.token_ids) for trace in self.traces)

    @property
    def decode_s(self) -> float:
        """Seconds during which at least one request was between its first and last token."""
        total, reached = 0.0, float("-inf")
        for times in sorted(trace.token_times_s for trace in self.traces if trace.token_times_s):
            total += max(0.0, times[-1] - max(times[0], reached))
            reached = max(reached, times[-1])
        return total

    @property
    def decode_step_ms(self) -> float:
        """Milliseconds of decode time per decode step; NaN where nothing was decoded."""
        return 1e3 * self.decode_s / self.decode_steps if self.decode_steps else float("nan")

    @property
    def total_tokens_per_s(self) -> float:
        """Generated token ids over wall time."""
        return self.generated_tokens / self.wall_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Generated token ids over decode time; NaN where nothing was decoded."""
        return self.generated_tokens / self.decode_s if self.decode_s > 0 else float("nan")

    def of_requests(self, latency: Latency) -> Floats:
        """A latency of every request in seconds, [requests]; of ITL each gap of each request."""
        each = [np.atleast_1d(getattr(trace, f"{latency}_s")) for trace in self.traces]
        return np.concatenate([np.empty(0), *each])

    @property
    def token_digest(self) -> str:
        """A hash of all generated ids: equal where two runs generated the same."""
        digest = hashlib.sha256()
        for trace in self.traces:
            digest.update(np.asarray([len(trace.token_ids), *trace.token_ids], np.int64).tobytes())
        return digest.hexdigest()[:16]

    def step_ms(self, workload: Workload) -> float:
        """Milliseconds of wall time per token of a sequence: prefill, host and all."""
        return 1e3 * self.wall_s / workload.steps

    def to_json(self) -> dict[str, Any]:
        """The run with every raw time, in seconds from its start."""
        return {
            "mode": self.mode,
            "wall_s": self.wall_s,
            "decode_s": self.decode_s,
            "decode_steps": self.decode_steps,
            "generated_tokens": self.generated_tokens,
            "token_digest": self.token_digest,
            "requests": [
                {
                    "submitted_s": round(trace.submitted_s - self.started_s, 7),
                    "token_times_s": [
                        round(moment - self.started_s, 7) for moment in trace.token_times_s
                    ],
                    "finish_reason": trace.finish_reason,
                }
                for trace in self.traces
            ],
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in five figures, in the unit of its values; all None where it is empty."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


def summarize(values: Sequence[float] | npt.NDArray[np.float64], factor: float = 1.0) -> Summary:
    """The values that are not NaN, in another unit by `factor`; percentiles are linear between."""
    array = np.asarray(values, np.float64)
    array = array[~np.isnan(array)]
    if not array.size:
        return Summary(None, None, None, None, None)
    figures = (array.mean(), *np.percentile(array, (50, 95, 99)), array.max())
    return Summary(*(float(figure) * factor for figure in figures))


def latencies_ms(samples: Sequence[RunSample]) -> dict[str, Summary]:
    """TTFT, TPOT, ITL and latency over the requests of all runs (ITL over gaps), milliseconds."""
    return {
        f"{name}_ms": summarize(
            np.concatenate([sample.of_requests(name) for sample in samples]), 1e3
        )
        for name in get_args(Latency)
    }
