"""An engine that is closed has nothing left to do, and says so to whoever goes on."""

from __future__ import annotations

import pytest
from engine_cases import GREEDY

from engine import EngineBusyError, EngineStoppedError


def test_a_closed_engine_has_nothing_left_and_says_that_it_was_closed(make_engine, prompts):
    engine = make_engine()
    stream = engine.stream(prompts[:1], GREEDY)
    next(stream)
    engine.submit(prompts[0], GREEDY)
    engine.step()
    engine.close()
    engine.close()
    assert not engine.has_unfinished
    assert engine.num_unfinished == 0
    for go_on in (
        engine.step,
        lambda: list(stream),  # beyond what has arrived
        lambda: engine.submit(prompts[0], GREEDY),
        lambda: engine.generate(prompts, GREEDY),
    ):
        with pytest.raises(EngineStoppedError, match=r"stopped: it was closed: build a new"):
            go_on()
    stream.close()


def test_an_engine_is_not_closed_in_the_middle_of_a_step(make_engine, prompts, monkeypatch):
    engine = make_engine()
    engine.submit(prompts[0], GREEDY)
    advance = engine._loop.advance

    def close_and_advance() -> None:
        with pytest.raises(EngineBusyError):
            engine.close()
        advance()

    monkeypatch.setattr(engine._loop, "advance", close_and_advance)
    engine.step()
    assert engine.has_unfinished
