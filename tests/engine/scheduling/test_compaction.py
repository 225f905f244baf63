"""Requests that run on when others have ended: steps become narrow, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import run_to_end

from engine import SamplingParams
from engine.transport.token_slots import TokenSlots

LATE = SamplingParams(max_new_tokens=60, ignore_eos=True)


def record_widths(engine) -> list[int]:
    """How many rows each decode step covers from now on."""
    plan_decode, widths = engine._loop.scheduler.plan_decode, []

    def recorded():
        plan = plan_decode()
        widths.extend([plan.num_rows] if plan is not None else [])
        return plan

    engine._loop.scheduler.plan_decode = recorded
    return widths


def short(new_tokens: int = 12) -> SamplingParams:
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)


def token_ids(events, request_id: int) -> list[int]:
    return [event.token_id for event in events if event.request_id == request_id]


@pytest.fixture(params=[0, 3], ids=["steps seen at once", "steps three behind"])
def options(request, monkeypatch):
    """Tokens that are never there before they are waited for: a device that lags as it may."""
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda slots, ticket: False)
    return {"steps_in_flight": request.param}


def alone(make_engine, prompt, params) -> list[int]:
    return make_engine().generate([prompt], params)[0].token_ids


@pytest.mark.parametrize("prompt_index", [0, 1, 6], ids=lambda place: f"prompt {place}")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_one_late_long_request_does_not_keep_steps_wide(
    make_engine, prompts, options, prompt_index, temperature
):
    late_params = replace(LATE, temperature=temperature, seed=5)
    expected = alone(make_engine, prompts[prompt_index], late_params)
    engine = make_engine(max_batch_size=16, **options)
    for place in range(15):
        engine.submit([7 + place, 3], short())
    events = engine.step() + engine.step()
    late = engine.submit(prompts[prompt_index], late_params)
    events += engine.step() + engine.step()
    widths = record_widths(engine)
    while not widths or widths[-1] > 1:
        events += engine.step()
    # The device runs it once: captured steps are wider than what runs, and reach its old row.
    assert engine._loop.worker.rows.fields.remaining.count_nonzero() == 1
    events += run_to_end(engine)
    assert token_ids(events, late) == expected
    assert [event.index for event in events if event.request_id == late] == [*range(60)]
    assert widths[0] == 16
    assert widths[-30:] == [1] * 30


def test_those_who_run_on_move_together_and_later_ones_take_what_they_left(
    make_engine, prompts, options
):
    engine = make_engine(max_batch_size=12, **options)
    params = [short(), replace(LATE, temperature=0.7, seed=9), LATE, short(40)]
    expected = [alone(make_engine, prompts[2], one) for one in params]
    for place in range(9):
        engine.submit([7 + place, 3], short(9))
    events = engine.step()
    ids = [engine.submit(prompts[2], one) for one in params[1:]]
    widths = record_widths(engine)
    while len(widths) < 25:
        events += engine.step()
        engine.check_integrity()
    assert (widths[0], widths[-1]) == (12, 3)
    # Their old rows are free for others, and hold nothing of theirs.
    ids = [engine.submit(prompts[2], params[0]), *ids]
    filling = [engine.submit(prompts[3], short(9)) for _ in range(8)]
    events += run_to_end(engine)
    assert max(widths[25:]) == 12
    assert [token_ids(events, one) for one in ids] == expected
    (filled,) = {tuple(token_ids(events, one)) for one in filling}
    assert [*filled] == alone(make_engine, prompts[3], short(9))


def test_a_moved_request_can_stop_be_aborted_and_be_preempted(make_engine, prompts, options):
    expected = alone(make_engine, prompts[4], LATE)
    stop = expected[50]
    first_stop = expected.index(stop)
    engine = make_engine(max_batch_size=8, num_kv_blocks=16, prefix_cache=False, **options)
    for place in range(5):
        engine.submit([7 + place, 3], short(9))
    events = engine.step()
    kept = engine.submit(prompts[4], LATE)
    stopped = engine.submit(prompts[4], replace(LATE, stop_token_ids=(stop,)))
    doomed = engine.submit(prompts[4], LATE)
    widths = record_widths(engine)
    while not widths or widths[-1] > 3:
        events += engine.step()
        engine.check_integrity()
    for _ in range(8):
        events += engine.step()
    engine.abort(doomed)
    # More than the cache has room for beside them.
    big = engine.submit(np.arange(150).tolist(), short(60))
    events += run_to_end(engine)
    assert token_ids(events, kept) == expected
    assert token_ids(events, stopped) == expected[: first_stop + 1]
    own = token_ids(events, doomed)
    assert own == [*expected[: len(own) - 1], None]
    assert len(token_ids(events, big)) == 60
    assert engine.block_manager.num_free_blocks == engine.num_kv_blocks


def test_prompts_that_decode_steps_feed_move_too(make_engine, prompts, options):
    """As on a GPU, where a short prompt's tokens are fed one a step."""
    expected = alone(make_engine, prompts[1] * 4, LATE)
    engine = make_engine(max_batch_size=8, **options)
    for part in (engine._loop.worker.runner, engine._loop.scheduler):
        setattr(part, "enter_limit" if part is engine._loop.worker.runner else "_enter_limit", 8)
    for place in range(7):
        engine.submit([7 + place, 3], short(5))
    events = engine.step() + engine.step() + engine.step()
    late = engine.submit(prompts[1] * 4, LATE)
    widths = record_widths(engine)
    events += run_to_end(engine)
    assert token_ids(events, late) == expected
    assert widths[0] == 8
    # It moved before its own first token.
    assert widths[5] == 1


def test_a_request_that_soon_ends_stays_where_it_is(make_engine, options):
    engine = make_engine(max_batch_size=8, **options)
    for place in range(7):
        engine.submit([7 + place, 3], short(5))
    engine.step()
    engine.submit([4, 4], short(9))
    widths = record_widths(engine)
    run_to_end(engine)
    assert set(widths) == {8}
