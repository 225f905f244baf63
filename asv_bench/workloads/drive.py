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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from asv_bench.errors import MeasurementFailed
from asv_bench.measure.delay import delay_of_steps
from asv_bench.workloads.named import Workload
from asv_bench.workloads.run_sample import Mode, RequestTrace, RunSample, Summary, summarize

if TYPE_CHECKING:
    from engine import TokenEvent

Prompt: TypeAlias = list[int] | str
Consumer: TypeAlias = "Callable[[Sequence[TokenEvent]], None]"


class EngineFace(Protocol):
    """The part of `engine.Engine` that the ruler drives."""

    def submit(self, prompt: Any, params: Any = None) -> int: ...
    def step(self) -> Sequence[TokenEvent]: ...
    @property
    def has_unfinished(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Feed:
    """When requests are handed in while the engine runs.

    `due_s` are seconds from the start, in order. Requests beyond `max_inflight` unfinished ones are
    held back. `workers` threads turn text into ids meanwhile; 0: the thread that submits.
    """

    due_s: Sequence[float]
    max_inflight: int | None = None
    workers: int = 0


def run_requests(
    engine: EngineFace,  # its earlier requests must have finished
    # One prompt (token ids or text) and one `SamplingParams` per request.
    prompts: Sequence[Prompt],
    params: Sequence[Any],
    *,
    # "naive": one request at a time. "offline": all submitted before the first step. "online":
    # submitted between steps as they fall due.
    mode: Mode = "offline",
    # Due times and limits of "online"; None: all due at once.
    feed: Feed | None = None,
    # Turns prompts that are text into ids, on the request's clock; None: the engine does.
    encode: Callable[[str], list[int]] | None = None,
    consumer: Consumer | None = None,  # gets the events of each step
) -> RunSample:
    """Run requests to completion and return when each token came.

    Raises MeasurementFailed if a request ended in an error: its times are no measurement.
    """
    feed = feed or Feed(due_s=[0.0] * len(prompts))
    run = _Run(engine, list(prompts), list(params), encode, consumer)
    with settled_garbage():
        started = time.perf_counter()
        if mode == "naive":
            for index in range(len(prompts)):
                run.submit(index)
                run.step_until_idle()
        elif mode == "offline":
            for index in range(len(prompts)):
                run.submit(index)
            run.step_until_idle()
        else:
            run.feed_and_step(feed, started)
        wall = time.perf_counter() - started
    return run.sample(mode, started, wall)


def run_workload(
    engine: EngineFace, workload: Workload, vocab_size: int, *, mode: Mode = "offline"
) -> RunSample:
    """Run a named workload once; see `run_requests`.

    Raises MeasurementFailed if a request generated another number of tokens than the workload asks
    for.
    """
    prompts = cast("list[Prompt]", workload.prompts(vocab_size))
    params = [workload.sampling_params(index) for index in range(workload.num_requests)]
    sample = run_requests(engine, prompts, params, mode=mode)
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


@dataclass
class _Run:
    """The state of one run: submitted requests, and events in order of arrival."""

    engine: EngineFace
    prompts: list[Prompt]
    params: list[Any]
    encode: Callable[[str], list[int]] | None
    consumer: Consumer | None

    def __post_init__(self) -> None:
        self.index_of: dict[int, int] = {}
        self.submitted_s = [0.0] * len(self.prompts)
        # Events are kept as they come and sorted out after the clock has stopped.
        self.steps: list[Sequence[TokenEvent]] = []
        self.delay = delay_of_steps(self.engine)

    def submit(self, index: int, *, handed_in_s: float | None = None) -> None:
        now = time.perf_counter()
        self.submitted_s[index] = now if handed_in_s is None else handed_in_s
        prompt = self.prompts[index]
        if self.encode is not None and isinstance(prompt, str):
            prompt = self.encode(prompt)
        request_id = self.engine.submit(prompt, self.params[index])
        self.index_of[request_id] = index

    def step(self) -> Sequence[TokenEvent]:
        if self.delay is not None:
            self.delay()
        events = self.engine.step()
        self.steps.append(events)
        if self.consumer is not None:
            self.consumer(events)
        return events

    def step_until_idle(self) -> None:
        while self.engine.has_unfinished:
            self.step()

    def feed_and_step(self, feed: Feed, started: float) -> None:
        limit = feed.max_inflight or len(self.prompts)
        waiting = deque(enumerate(feed.due_s))
        encoding: deque[tuple[int, float, Future[list[int]]]] = deque()
        inflight = 0
        with ThreadPoolExecutor(max(feed.workers, 1)) as pool:
            while waiting or encoding or self.engine.has_unfinished:
                now = time.perf_counter()
                while waiting and waiting[0][1] <= now - started and inflight < limit:
                    index, _ = waiting.popleft()
                    inflight += 1
                    prompt = self.prompts[index]
                    if feed.workers and self.encode is not None and isinstance(prompt, str):
                        encoding.append((index, now, pool.submit(self.encode, prompt)))
                    else:
                        self.submit(index)
                # In order: a prompt that is ready waits for the one before it.
                while encoding and encoding[0][2].done():
                    index, handed_in, encoded = encoding.popleft()
                    self.prompts[index] = encoded.result()
                    self.submit(index, handed_in_s=handed_in)
                if self.engine.has_unfinished:
                    events = self.step()
                    if feed.max_inflight is not None:
                        inflight -= sum(event.finish_reason is not None for event in events)
                elif encoding:
                    encoding[0][2].exception()
                elif waiting:
                    time.sleep(max(0.0, started + waiting[0][1] - time.perf_counter()))

    def sample(self, mode: Mode, started: float, wall: float) -> RunSample:
        traces = [RequestTrace(submitted_s=moment) for moment in self.submitted_s]
        decode_steps = 0
        for events in self.steps:
            decoded: Counter[int] = Counter()
            for event in events:
                index = self.index_of.get(event.request_id)
                if index is None:
                    raise MeasurementFailed(
                        f"the engine reported request {event.request_id}, which this run did not "
                        f"submit; an engine is measured with nothing else running."
                    )
                trace = traces[index]
                if event.token_id is not None:
                    trace.token_ids.append(event.token_id)
                    trace.token_times_s.append(event.time_s)
                    decoded[event.request_id] += event.index > 0
                if event.finish_reason is not None:
                    trace.finish_reason = event.finish_reason
            # One call may report several steps of the device: as many as one request got tokens.
            decode_steps += max(decoded.values(), default=0)
        failed = [i for i, trace in enumerate(traces) if trace.finish_reason in (None, "error")]
        if failed:
            raise MeasurementFailed(
                f"request {failed[0]} ended with {traces[failed[0]].finish_reason!r}, as did "
                f"{len(failed) - 1} more; a failed run is not a measurement."
            )
        return RunSample(mode, started, wall, decode_steps, traces)


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
    """Collects tokens of each request and delivers them `interval` at a time, or when it ends.

    `to_text` turns the ids of a delivery into text, as a server would; None: ids are delivered.
    """

    def __init__(
        self, interval: int = 1, to_text: Callable[[list[int]], str] | None = None
    ) -> None:
        self._interval = interval
        self._to_text = to_text
        self._pending: defaultdict[int, list[int]] = defaultdict(list)
        self._delivered_s: defaultdict[int, list[float]] = defaultdict(list)

    def receive(self, events: Sequence[TokenEvent]) -> None:
        """Take the events of one step and deliver what is due."""
        for event in events:
            pending = self._pending[event.request_id]
            if event.token_id is not None:
                pending.append(event.token_id)
            finished = event.finish_reason is not None
            if pending and (finished or len(pending) >= self._interval):
                if self._to_text is not None:
                    self._to_text(pending)
                self._delivered_s[event.request_id].append(time.perf_counter())
                pending.clear()
            if finished:
                del self._pending[event.request_id]

    def gaps_ms(self) -> Summary:
        """Gaps between consecutive deliveries of a request: not ITL, which is per token."""
        return summarize(
            [
                1e3 * (later - earlier)
                for moments in self._delivered_s.values()
                for earlier, later in itertools.pairwise(moments)
            ]
        )
