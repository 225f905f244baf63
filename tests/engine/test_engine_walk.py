"""Random walks over everything a caller can do, in any order and with any limits.

Each request must end, once, with the tokens that it has when it runs alone, whoever drives the
engine meanwhile; nobody is given another's tokens; and the KV bookkeeping is sound after each move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import Engine, EngineConfig, QueueFullError, SamplingParams, TokenEvent

CACHE_TOKENS = 32
"""Of the smallest cache: as long as the longest request, so that others are preempted for it."""
MOST_MOVES = 400
"""Steps after which requests of so few tokens have ended, or never will."""

COMMON = (7, 3, 7, 7, 200, 4, 4, 31, 90, 7, 3, 7, 11, 12, 13, 14, 15, 16)
PROMPTS = [COMMON[:length] for length in (1, 2, 4, 5, 8, 9, 16, 18)]
PROMPTS += [(*COMMON[:8], 500), (*COMMON[:9], 501, 502), (9,), (901, 902, 903)]
PARAMS = [
    SamplingParams(max_new_tokens=1, ignore_eos=True),
    SamplingParams(max_new_tokens=4, ignore_eos=True),
    SamplingParams(max_new_tokens=14, ignore_eos=True),
    SamplingParams(max_new_tokens=9, ignore_eos=True, temperature=1.0, seed=5),
    SamplingParams(max_new_tokens=12, stop_token_ids=tuple(range(0, 1000, 5))),
]

prompts = st.sampled_from(PROMPTS)
params = st.sampled_from(PARAMS)
picks = st.integers(0, 100)
limits = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([2, 4, 16]),
        "max_batch_size": st.integers(1, 4),
        "prefix_cache": st.booleans(),
        "admission": st.sampled_from(["fifo", "pack"]),
        "admission_lookahead": st.sampled_from([1, 3]),
        "force_fifo_every": st.sampled_from([1, 2]),
        "prefill_max_tokens": st.sampled_from([None, 5]),
        "prefill_max_batch_size": st.sampled_from([None, 1, 2]),
        "max_active_requests": st.sampled_from([None, 2]),
        "max_inflight_requests": st.sampled_from([None, 3]),
        "decode_first": st.booleans(),
        "steps_in_flight": st.sampled_from([0, 1, 3]),
    }
)


@cache
def alone() -> Engine:
    return Engine(EngineConfig(device="cpu", max_batch_size=1, num_kv_blocks=2, prefix_cache=False))


@cache
def output_alone(prompt: tuple[int, ...], one: SamplingParams) -> tuple[list[int], str]:
    (completion,) = alone().generate([list(prompt)], one)
    return completion.token_ids, completion.finish_reason


@dataclass
class Told:
    """What its owner has been told of a request."""

    token_ids: list[int] = field(default_factory=list)
    reason: str | None = None

    def hear(self, event: TokenEvent) -> None:
        assert self.reason is None, "something came after the end"
        assert event.index == len(self.token_ids)
        if event.token_id is not None:
            self.token_ids.append(event.token_id)
        else:
            assert event.finish_reason == "abort"
        self.reason = event.finish_reason

    def is_of(self, prompt: tuple[int, ...], one: SamplingParams) -> bool:
        """Whether this is what the request gives alone, or as much of it as has come."""
        token_ids, reason = output_alone(prompt, one)
        if self.reason in (None, "abort"):
            return self.token_ids == token_ids[: len(self.token_ids)]
        return (self.token_ids, self.reason) == (token_ids, reason)


@dataclass(eq=False)
class OpenStream:
    events: Iterator[TokenEvent]
    prompts: list[tuple[int, ...]]
    params: SamplingParams
    told: dict[int, Told] = field(default_factory=dict)

    def hear_next(self) -> bool:
        """Take one event; whether there was one."""
        event = next(self.events, None)
        if event is not None:
            self.told.setdefault(event.request_id, Told()).hear(event)
        return event is not None

    def check(self, *, is_over: bool) -> None:
        """Hold what came against what each prompt gives alone; ids are in the prompts' order."""
        told = [self.told[request_id] for request_id in sorted(self.told)]
        if is_over:
            assert all(one.reason is not None for one in told)
            assert len(told) == len(self.prompts)
            pairs = zip(told, self.prompts, strict=True)
            assert all(one.is_of(prompt, self.params) for one, prompt in pairs)
        for one in told:
            assert any(one.is_of(prompt, self.params) for prompt in self.prompts)


class EngineWalk(RuleBasedStateMachine):
    @initialize(limits=limits, spare_blocks=st.sampled_from([0, 2, 8]))
    def start(self, limits: dict[str, Any], spare_blocks: int) -> None:
        num_blocks = CACHE_TOKENS // limits["block_size"] + spare_blocks
        self.engine = Engine(EngineConfig(device="cpu", num_kv_blocks=num_blocks, **limits))
        self.submitted: dict[int, tuple[tuple[int, ...], SamplingParams]] = {}
        self.told: dict[int, Told] = {}
        self.streams: list[OpenStream] = []
        self.aborted: set[int] = set()

    def hear(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert event.request_id in self.submitted, "a stream's token came to the caller of step"
            self.told[event.request_id].hear(event)

    # What a caller can do

    @rule(prompt=prompts, one=params)
    def submit(self, prompt: tuple[int, ...], one: SamplingParams) -> None:
        limit = self.engine.config.max_inflight_requests
        if limit is not None and self.engine.num_unfinished >= limit:
            with pytest.raises(QueueFullError):
                self.engine.submit(list(prompt), one)
            return
        request_id = self.engine.submit(list(prompt), one)
        assert request_id not in self.told
        self.submitted[request_id] = prompt, one
        self.told[request_id] = Told()

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.hear(self.engine.step())

    @rule()
    def step_in_columns(self) -> None:
        for batch in self.engine.step_batches():
            self.hear(batch.events())

    @precondition(lambda self: self.submitted or any(one.told for one in self.streams))
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        known = [*self.submitted, *(id_ for stream in self.streams for id_ in stream.told)]
        request_id = known[pick % len(known)]
        self.engine.abort(request_id)
        self.aborted.add(request_id)

    @precondition(lambda self: len(self.streams) < 3)
    @rule(some=st.lists(prompts, min_size=1, max_size=4), one=params)
    def open_stream(self, some: list[tuple[int, ...]], one: SamplingParams) -> None:
        events = self.engine.stream([list(prompt) for prompt in some], one)
        self.streams.append(OpenStream(events, some, one))

    @precondition(lambda self: self.streams)
    @rule(pick=picks, times=st.integers(1, 12))
    def take_from_stream(self, pick: int, times: int) -> None:
        stream = self.streams[pick % len(self.streams)]
        for _ in range(times):
            if not stream.hear_next():
                self.end(stream)
                return

    @precondition(lambda self: self.streams)
    @rule(pick=picks)
    def leave_stream(self, pick: int) -> None:
        stream = self.streams.pop(pick % len(self.streams))
        stream.events.close()  # type: ignore[attr-defined]
        stream.check(is_over=False)

    @rule(some=st.lists(prompts, min_size=1, max_size=3), one=params)
    def generate(self, some: list[tuple[int, ...]], one: SamplingParams) -> None:
        done = self.engine.generate([list(prompt) for prompt in some], one)
        for completion, prompt in zip(done, some, strict=True):
            expected = output_alone(prompt, one)
            assert (completion.token_ids, completion.finish_reason) == expected

    def end(self, stream: OpenStream) -> None:
        stream.check(is_over=True)
        ends = {id_: told.reason for id_, told in stream.told.items()}
        assert {id_ for id_, reason in ends.items() if reason == "abort"} <= self.aborted
        self.streams.remove(stream)

    # What must hold after every move, and at the end

    @invariant()
    def bookkeeping_is_sound(self) -> None:
        self.engine.check_integrity()

    @invariant()
    def everyone_has_what_the_request_gives_alone(self) -> None:
        for request_id, told in self.told.items():
            assert told.is_of(*self.submitted[request_id])
            assert told.reason != "abort" or request_id in self.aborted

    def teardown(self) -> None:
        for stream in list(self.streams):
            for _ in range(MOST_MOVES):
                if not stream.hear_next():
                    self.end(stream)
                    break
            else:
                raise AssertionError("a stream does not end")
        for _ in range(MOST_MOVES):
            if not self.engine.has_unfinished:
                break
            self.hear(self.engine.step())
        assert not self.engine.has_unfinished, "a request does not end"
        # An abort after the last step, and what arrived while a stream drove the engine.
        self.hear(self.engine.step())
        assert all(told.reason is not None for told in self.told.values())
        self.everyone_has_what_the_request_gives_alone()
        self.engine.check_integrity()
        if not self.engine.config.prefix_cache:
            blocks = self.engine.block_manager
            assert blocks.num_free_blocks == blocks.num_blocks


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


# Who waits for a token that never comes waits inside the engine, where nothing counts the moves;
# and a walk that fails is made shorter for up to 300 s, until it shows the fault alone.
@pytest.mark.timeout(500)
class TestEngineWalk(EngineWalk.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=15, stateful_step_count=30, suppress_health_check=SLOW)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
class TestLongEngineWalk(EngineWalk.TestCase):  # type: ignore[misc]
    settings = settings(
        derandomize=False, max_examples=1000, stateful_step_count=60, suppress_health_check=SLOW
    )
