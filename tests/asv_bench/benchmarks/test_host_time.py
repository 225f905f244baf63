"""The host's own time of a step: what `step` takes without its waits for the device."""

from __future__ import annotations

import pytest
import torch
from fake_engine import FakeClock, FakeEngine

from asv_bench.benchmarks import host
from asv_bench.benchmarks.host import HostTimedEngine, counted_waits
from engine import SamplingParams


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(host, "time", clock)
    return clock


def delivered(engine: HostTimedEngine, *tokens: int) -> list[int]:
    """Run requests of so many tokens; how many events each step delivers."""
    for count in tokens:
        engine.submit([1], SamplingParams(max_new_tokens=count))
    counts = []
    while engine.has_unfinished:
        counts.append(len(engine.step()))
    return counts


@pytest.mark.parametrize("owner", [torch.cuda.Event, torch.cuda.Stream, torch.cuda])
def test_waits_are_no_work_of_the_host(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, owner: object
) -> None:
    monkeypatch.setattr(owner, "synchronize", lambda *_: clock.sleep(7.0))
    waiting = owner.synchronize

    class WaitingEngine(FakeEngine):
        def step(self):
            owner.synchronize()
            return super().step()

    with counted_waits() as waits:
        engine = HostTimedEngine(WaitingEngine(clock, step_s=0.25), waits)
        delivered(engine, 4, 4, 4)
    assert clock.slept == [7.0] * 4
    assert engine.steps == [(3, 0.25)] * 4
    assert sum(waits) == 28.0
    # What was patched is whole again.
    assert owner.synchronize is waiting


def test_the_events_of_columns_are_made_off_the_clock(clock: FakeClock) -> None:
    class LazyBatch:
        def __init__(self, events):
            self._events = events

        def events(self):
            clock.sleep(50.0)
            return self._events

    class BatchEngine(FakeEngine):
        def step_batches(self):
            return [LazyBatch(self.step()), LazyBatch([])]

    engine = HostTimedEngine(BatchEngine(clock, step_s=0.5), [], in_columns=True)
    assert delivered(engine, 2, 3, 3) == [3, 3, 2]
    assert engine.steps == [(3, 0.5), (3, 0.5), (2, 0.5)]
    # Only steps of the whole batch count.
    assert engine.full_steps_s(3) == [0.5, 0.5]
