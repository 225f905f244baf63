"""Engines that take turns: who steps when, and the times of tokens without the waits."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from asv_bench.measure.turns import own_turns
from asv_bench.studies.ladder import engine_in_turns
from asv_bench.studies.ladder.engine_in_turns import EngineInTurns
from asv_bench.workloads.drive import RequestTrace, RunSample


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
    monkeypatch.setattr(engine_in_turns, "TURN_STEPS", 3)
    engine = EngineInTurns(Counting(), Other())
    assert engine.submit([1]) == 7
    times = [engine.step()[0] for _ in range(12)]
    assert len(engine.waits) == 3
    trace = RequestTrace(0.0, list(range(12)), list(times))
    of_turns = engine.take_waits_out(RunSample("online", 0.0, 1.0, 11, [trace]))
    assert len(of_turns) == 2
    assert all(0.01 <= seconds < 0.05 for seconds in of_turns)
    assert times[-1] - times[0] > 0.4
    assert 0.11 <= trace.token_times_s[-1] - trace.token_times_s[0] < 0.4
    assert trace.itl_s.max() < 0.1
    assert trace.token_times_s[0] == times[0], "nothing was waited before the first"


def test_alone_an_engine_never_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_in_turns, "TURN_STEPS", 1)
    monkeypatch.delenv("KVTRAIL_TURNS", raising=False)
    engine = EngineInTurns(SimpleNamespace(step=list, has_unfinished=False), own_turns())
    assert engine.step() == engine.step() == []
    assert not engine.waits
    assert not engine.has_unfinished


def test_a_run_begins_with_a_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_in_turns, "TURN_STEPS", 3)
    engine = EngineInTurns(Counting(), Other())
    for steps, waits in ((4, 1), (3, 1), (1, 2)):
        if steps == 3:
            engine.begin_run()
        for _ in range(steps):
            engine.step()
        assert len(engine.waits) == waits


def test_each_turn_has_its_own_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_in_turns, "TURN_STEPS", 2)
    engine = EngineInTurns(Counting(), Other())
    # Turns of two tokens a second apart, of which the second turn takes ten times as long.
    moments = [1.0, 2.0, 12.0, 22.0, 23.0, 24.0, 25.0, 26.0]
    engine.waits = [(2.0, 2.0), (22.0, 22.0), (24.0, 24.0), (26.0, 26.0)]
    trace = RequestTrace(0.0, list(range(8)), moments)
    assert engine.take_waits_out(RunSample("online", 0.0, 26.0, 7, [trace])) == [10.0, 1.0, 1.0]
