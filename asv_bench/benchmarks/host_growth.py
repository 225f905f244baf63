"""Costs of the host that must not grow with streams, waiting requests or finished ones.

Each is measured at a small and at a large number of these, on the CPU and with a model so small
that the host's work counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from .engine_runs import CPU_MODEL
from .sharing import CommitBenchmark, median_s, tracked

if TYPE_CHECKING:
    from engine import Engine

BATCH = 64
STEPS = 48
MANY_STOP_IDS = 51_200
LONG_OUTPUT = 100
MANY_STREAMS = 128


class _Steps(CommitBenchmark):
    """Base of benchmarks of a step of what `prepare` has submitted."""

    _engine: Engine

    @tracked()
    def track_step(self, _: int) -> float:
        """Seconds of a step."""
        return median_s(self._engine.step, STEPS, warmups=STEPS // 4)


class ManyStreams(_Steps, streams=[1, MANY_STREAMS]):
    """A step whose tokens wait in a number of streams, which share the requests of the batch."""

    def prepare(self, streams: int) -> None:
        import engine

        if not hasattr(engine, "TokenStream"):
            raise SkipNotImplemented("this commit has one open stream at most")
        self._engine = _engine(max_batch_size=MANY_STREAMS, max_model_len=3 * MANY_STREAMS)
        each = MANY_STREAMS // streams
        # A stream begins with its first event, a step after the one before. So later ones have as
        # much more of a prompt, and all sequences are equally long when steps are timed.
        lengths = range(1 + MANY_STREAMS - streams, 1 + MANY_STREAMS)
        prompts = [
            [[1 + each * group + place] * length for place in range(each)]
            for group, length in enumerate(lengths)
        ]
        params = _params(2 * MANY_STREAMS - 1)
        self._streams = [self._engine.stream(group, params) for group in prompts]
        for stream in self._streams:
            next(stream)


class StopIdsOfOthers(_Steps, stop_ids=[1, MANY_STOP_IDS]):
    """A step of requests with one stop id each, after one ended that had many, nearly all equal."""

    def prepare(self, stop_ids: int) -> None:
        self._engine = _engine()
        ids = (1, 2) * (stop_ids // 2) or (1,)
        self._engine.submit([5], _params(1, stop_token_ids=ids))
        while self._engine.has_unfinished:
            self._engine.step()
        for place in range(BATCH):
            self._engine.submit([1 + place], _params(LONG_OUTPUT, stop_token_ids=(0,)))


class AbortOfWaiting(CommitBenchmark, waiting=[500, 16_000]):
    """Aborting waiting requests, the newest first."""

    def prepare(self, waiting: int) -> None:
        self._engine = _engine()
        self._ids = [self._engine.submit([1], _params(1)) for _ in range(waiting)]

    @tracked()
    def track_abort(self, waiting: int) -> float:
        """Seconds for each request."""
        started = time.perf_counter()
        for request_id in reversed(self._ids):
            self._engine.abort(request_id)
        return (time.perf_counter() - started) / waiting


class LateRequest(_Steps, rows=[1, BATCH]):
    """A step of a request in the last row, after the requests in all other rows have ended."""

    def prepare(self, rows: int) -> None:
        self._engine = _engine()
        for place in range(rows - 1):
            self._engine.submit([1 + place], _params(8))
        self._engine.step()
        self._engine.submit([1, 2], _params(LONG_OUTPUT))
        while self._engine.num_unfinished > 1:
            self._engine.step()


class BlockedPrompt(CommitBenchmark, prompt=[80, 960]):
    """A step of a request while another waits for room in the KV cache."""

    def prepare(self, prompt: int) -> None:
        new_tokens = STEPS // 2 + STEPS // 4
        # A block a token: the common prefix of both prompts is looked up token by token.
        room: Any = {"num_kv_blocks": prompt + new_tokens, "max_model_len": prompt + new_tokens}
        self._engine = _engine(block_size=1, max_batch_size=2, **room)
        self._engine.submit([3] * prompt, _params(new_tokens))
        self._engine.step()
        half = prompt // 2
        self._engine.submit([3] * half + [5] * half, _params(1))

    @tracked()
    def track_step(self, prompt: int) -> float:
        """Seconds of a step of the running request."""
        seconds = median_s(self._engine.step, STEPS // 2, warmups=STEPS // 8)
        if self._engine.num_unfinished != 2:
            raise RuntimeError(f"{self._engine.num_unfinished} requests are left, not 2.")
        return seconds


def _engine(**options: Any) -> Engine:
    from engine import Engine, EngineConfig

    sizes: dict[str, Any] = {"max_batch_size": BATCH, "max_model_len": 128}
    config = EngineConfig(model=f"random:{CPU_MODEL}", device="cpu", **(sizes | options))
    return Engine(config)


def _params(new_tokens: int, **others: Any) -> Any:
    from engine import SamplingParams

    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, **others)
