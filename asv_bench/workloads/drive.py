"""Drive requests through an engine, keep the time of every token, and sum the times up.

TTFT, TPOT, ITL, throughput and decode time are defined here and nowhere else. Only the engine's
public face is used (`submit`, `step`, `has_unfinished`), so the same ruler measures the engine of
any commit. Token ids are counted, never text.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.delay import delay_of_steps
from asv_bench.stats.paired import Floats
from asv_bench.workloads.named import Workload

if TYPE_CHECKING:
    from engine import TokenEvent

Prompt: TypeAlias = list[int] | str
Mode: TypeAlias = Literal["naive", "online", "offline"]
MODES: tuple[Mode, ...] = get_args(Mode)
Latency: TypeAlias = Literal["ttft", "tpot", "itl", "latency"]


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
                    "token_times_s": [round(at - self.started_s, 7) for at in trace.token_times_s],
                    "finish_reason": trace.finish_reason,
                }
                for trace in self.traces
            ],
        }


Summary: TypeAlias = dict[str, float | None]
"""A distribution in five figures, in the unit of its values; all None where it is empty."""


def summarize(values: Sequence[float] | Floats) -> Summary:
    """The values that are not NaN; percentiles are linear between."""
    array = np.asarray(values, np.float64)
    array = array[~np.isnan(array)]
    names = ("mean", "p50", "p95", "p99", "max")
    if not array.size:
        return dict.fromkeys(names)
    figures = (array.mean(), *np.percentile(array, (50, 95, 99)), array.max())
    return dict(zip(names, map(float, figures), strict=True))


def latencies_ms(samples: Sequence[RunSample]) -> dict[str, Summary]:
    """TTFT, TPOT, ITL and latency over the requests of all runs (ITL over gaps), milliseconds."""
    each = {name: [sample.of_requests(name) for sample in samples] for name in get_args(Latency)}
    return {f"{name}_ms": summarize(1e3 * np.concatenate(found)) for name, found in each.items()}


class EngineFace(Protocol):
    """The part of `engine.Engine` that the ruler drives."""

    def submit(self, prompt: Any, params: Any = None) -> int: ...
    def step(self) -> Sequence[TokenEvent]: ...
    @property
    def has_unfinished(self) -> bool: ...


def run_requests(
    engine: EngineFace,  # its earlier requests must have finished
    # One prompt (token ids or text) and one `SamplingParams` per request.
    prompts: Sequence[Prompt],
    params: Sequence[Any],
    *,
    # "naive": one request at a time. "offline": all submitted before the first step. "online":
    # submitted between steps as they fall due.
    mode: Mode = "offline",
    # Of "online": seconds from the start, in order (None: all at once), and how many requests may
    # be unfinished; others are held back.
    due_s: Sequence[float] | None = None,
    max_inflight: int | None = None,
    # Turns prompts that are text into ids, on the request's clock.
    encode: Callable[[str], list[int]] | None = None,
    # Gets the events of each step.
    consumer: Callable[[Sequence[TokenEvent]], None] | None = None,
) -> RunSample:
    """Run requests to completion and return when each token came.

    Raises MeasurementFailed if a request ended in an error: its times are no measurement.
    """
    if mode != "online":
        due_s, max_inflight = None, 1 if mode == "naive" else None
    limit = len(prompts) if max_inflight is None else max_inflight
    delay = delay_of_steps(engine)
    traces = [RequestTrace(0.0) for _ in prompts]
    trace_of: dict[int, RequestTrace] = {}
    # Events are kept as they come and sorted out after the clock has stopped.
    steps: list[Sequence[TokenEvent]] = []
    inflight = 0
    waiting = deque(enumerate(due_s or [0.0] * len(prompts)))
    with settled_garbage():
        started = time.perf_counter()
        while True:
            while waiting and inflight < limit:
                index, due = waiting[0]
                now = time.perf_counter()
                if due > now - started:
                    break
                waiting.popleft()
                inflight += 1
                traces[index].submitted_s = now
                prompt = prompts[index]
                if encode is not None and isinstance(prompt, str):
                    prompt = encode(prompt)
                trace_of[engine.submit(prompt, params[index])] = traces[index]
            if engine.has_unfinished:
                if delay is not None:
                    delay()
                events = engine.step()
                steps.append(events)
                if consumer is not None:
                    consumer(events)
                if max_inflight is not None:
                    inflight -= sum(event.finish_reason is not None for event in events)
            elif waiting:
                inflight = 0  # also where a request ended without a word
                time.sleep(max(0.0, started + waiting[0][1] - time.perf_counter()))
            else:
                break
        wall = time.perf_counter() - started
    decode_steps = sum(_sort_out(events, trace_of) for events in steps)
    failed = [i for i, trace in enumerate(traces) if trace.finish_reason in (None, "error")]
    if failed:
        raise MeasurementFailed(
            f"request {failed[0]} ended with {traces[failed[0]].finish_reason!r}, as did "
            f"{len(failed) - 1} more; a failed run is not a measurement."
        )
    return RunSample(mode, started, wall, decode_steps, traces)


def _sort_out(events: Sequence[TokenEvent], trace_of: dict[int, RequestTrace]) -> int:
    """Give each event of a call of `step` to its request; how many decode steps it reported."""
    decoded: Counter[int] = Counter()
    for event in events:
        trace = trace_of.get(event.request_id)
        if trace is None:
            raise MeasurementFailed(
                f"the engine reported request {event.request_id}, which this run did not "
                f"submit; an engine is measured with nothing else running."
            )
        if event.token_id is not None:
            trace.token_ids.append(event.token_id)
            trace.token_times_s.append(event.time_s)
            decoded[event.request_id] += event.index > 0
        if event.finish_reason is not None:
            trace.finish_reason = event.finish_reason
    # One call may report several steps of the device: as many as one request got tokens.
    return max(decoded.values(), default=0)


def run_workload(
    engine: EngineFace, workload: Workload, vocab_size: int, *, mode: Mode = "offline"
) -> RunSample:
    """Run a named workload once; see `run_requests` and `require_complete`."""
    params = [workload.sampling_params(index) for index in range(workload.num_requests)]
    sample = run_requests(engine, workload.prompts(vocab_size), params, mode=mode)
    require_complete(sample, workload)
    return sample


def require_complete(sample: RunSample, workload: Workload) -> None:
    """Raise MeasurementFailed unless every request generated as many ids as the workload says."""
    for index, trace in enumerate(sample.traces):
        new_tokens = workload.new_length(index)
        if len(trace.token_ids) != new_tokens:
            raise MeasurementFailed(
                f"request {index} generated {len(trace.token_ids)} of {new_tokens} tokens "
                f"(finish reason {trace.finish_reason!r}); this run measures something else."
            )


@contextmanager
def settled_garbage() -> Iterator[None]:
    """Hide existing objects from the garbage collector, so that collections stay short.

    Those that were hidden before stay so, and with them these: nothing uncovers only some.
    """
    has_hidden = bool(gc.get_freeze_count())
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not has_hidden:
            gc.unfreeze()


class StreamReader:
    """Delivers the tokens of each request `interval` at a time, or when it ends."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._pending: Counter[int] = Counter()
        self._delivered_s: defaultdict[int, list[float]] = defaultdict(list)

    def receive(self, events: Sequence[TokenEvent]) -> None:
        """Take the events of one step and deliver what is due."""
        for event in events:
            request_id, is_last = event.request_id, event.finish_reason is not None
            self._pending[request_id] += event.token_id is not None
            if self._pending[request_id] >= (1 if is_last else self._interval):
                self._delivered_s[request_id].append(time.perf_counter())
                self._pending[request_id] = 0

    def gaps_ms(self) -> Summary:
        """Gaps between consecutive deliveries of a request: not ITL, which is per token."""
        pairs = itertools.chain(*map(itertools.pairwise, self._delivered_s.values()))
        return summarize([1e3 * (later - earlier) for earlier, later in pairs])
