"""Drive requests through an engine and keep the time of every token.

Only the engine's public face is used (`submit`, `step`, `has_unfinished`), so the same ruler
measures the engine of any commit. Token ids are counted, never text.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.delay import delay_of_steps
from asv_bench.workloads.named import Workload
from asv_bench.workloads.run_sample import Mode, RequestTrace, RunSample, Summary, summarize

if TYPE_CHECKING:
    from engine import TokenEvent

Prompt: TypeAlias = list[int] | str


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
    if mode != "online" or due_s is None:
        due_s = [0.0] * len(prompts)
    if mode != "online":
        max_inflight = 1 if mode == "naive" else None
    limit = len(prompts) if max_inflight is None else max_inflight
    delay = delay_of_steps(engine)
    traces = [RequestTrace(0.0) for _ in prompts]
    trace_of: dict[int, RequestTrace] = {}
    # Events are kept as they come and sorted out after the clock has stopped.
    steps: list[Sequence[TokenEvent]] = []
    inflight = 0
    waiting = deque(enumerate(due_s))
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
