"""Engines that take turns: who steps when, and the times of tokens without the waits."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from asv_bench.process.turns import own_turns
from asv_bench.studies.ladder import engine_in_turns
from asv_bench.studies.ladder.engine_in_turns import EngineInTurns
from asv_bench.workloads.run_sample import RequestTrace, RunSample


class Other:
    """Another process, which takes a fifth of a second for each of its turns."""

    are_shared = True

    def pass_on(self) -> None:
        self.began = time.perf_counter()

    def wait(self) -> None:
        time.sleep(0.2)


class Counting:
    """An engine that gives the time of each step."""

    has_unfinished = True

    def submit(self, prompt, params=None) -> int:
        return 7

    def step(self):
        time.sleep(0.01)
        return [time.perf_counter()]


def test_tokens_come_when_they_would_have_without_the_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_in_turns, "TURN_SECONDS", 0.025)
    engine = EngineInTurns(Counting(), Other())
    assert engine.submit([1]) == 7
    times = [engine.step()[0] for _ in range(9)]
    assert 2 <= len(engine.waits) <= 4
    trace = RequestTrace(0.0, list(range(9)), list(times))
    engine.take_waits_out(RunSample("online", 0.0, 1.0, 8, [trace]))
    assert times[-1] - times[0] > 0.4
    assert 0.08 <= trace.token_times_s[-1] - trace.token_times_s[0] < 0.2
    assert trace.itl_s.max() < 0.1
    assert trace.token_times_s[0] == times[0], "nothing was waited before the first"


def test_alone_an_engine_never_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_in_turns, "TURN_SECONDS", 0.0)
    monkeypatch.delenv("KVTRAIL_TURNS", raising=False)
    engine = EngineInTurns(SimpleNamespace(step=list, has_unfinished=False), own_turns())
    assert engine.step() == []
    assert not engine.waits
    assert not engine.has_unfinished
