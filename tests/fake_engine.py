"""An engine that only keeps time: every step takes one second of a clock that tests read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class FakeEvent(NamedTuple):
    request_id: int
    token_id: int | None
    index: int
    time_s: float
    finish_reason: str | None


@dataclass
class FakeClock:
    """Stands in for the module `time`."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class FakeEngine:
    """Gives every unfinished request one token a step; `tokens_per_step` of them at once."""

    clock: FakeClock
    tokens_per_step: int = 1
    step_s: float = 1.0
    last_reason: str = "length"
    foreign_events: bool = False
    submitted: list[tuple[float, Any]] = field(default_factory=list)
    most_running: int = 0
    steps: int = 0
    _left: dict[int, int] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)

    def submit(self, prompt: Any, params: Any = None) -> int:
        request_id = 1000 + len(self.submitted)
        self.submitted.append((self.clock.now, prompt))
        self._left[request_id] = params.max_new_tokens
        self._done[request_id] = 0
        return request_id

    @property
    def has_unfinished(self) -> bool:
        return bool(self._left)

    def step(self) -> Sequence[FakeEvent]:
        self.steps += 1
        self.most_running = max(self.most_running, len(self._left))
        events: list[FakeEvent] = []
        for _ in range(self.tokens_per_step):
            self.clock.now += self.step_s
            for request_id, left in list(self._left.items()):
                index, reason = self._done[request_id], self.last_reason if left == 1 else None
                token = 7 * request_id + index
                events.append(FakeEvent(request_id, token, index, self.clock.now, reason))
                self._done[request_id] += 1
                self._left[request_id] -= 1
                if left == 1:
                    del self._left[request_id]
        if self.foreign_events:
            events.append(FakeEvent(1, 5, 0, self.clock.now, None))
        return events
