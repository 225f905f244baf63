"""What a prompt that does not fit costs the others: neither their cached blocks nor their time."""

from __future__ import annotations

import numpy as np
import pytest

from engine import SamplingParams

BLOCKS = 24


def _prompt(length: int, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, length).tolist()


def _params(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)


def _num_matches(engine, monkeypatch) -> list[int]:
    """The prompts that are looked up in the prefix cache from now on, by their lengths."""
    cache, looked_up = engine._loop.scheduler.prefix_cache, []
    match = cache.match
    monkeypatch.setattr(
        cache, "match", lambda tokens: (looked_up.append(len(tokens)), match(tokens))[1]
    )
    return looked_up


@pytest.fixture
def crowded(make_engine):
    """An engine of 24 blocks: eight cached, nine held by a request that runs, the rest free."""
    engine = make_engine(num_kv_blocks=BLOCKS, max_batch_size=4)
    engine.generate([_prompt(16 * 8 + 1)], _params(1))
    engine.submit(_prompt(16 * 8 + 1, seed=4), _params(100))
    engine.step()
    return engine


@pytest.mark.parametrize("admission", ["fifo", "pack"])
def test_a_prompt_that_cannot_fit_evicts_nothing(make_engine, admission):
    engine = make_engine(num_kv_blocks=BLOCKS, max_batch_size=4, admission=admission)
    cached = _prompt(16 * 8 + 1)
    engine.generate([cached], _params(1))
    engine.submit(_prompt(16 * 8 + 1, seed=4), _params(100))
    engine.step()
    waiting = engine.submit(_prompt(16 * 20, seed=5), _params(2))
    for _ in range(5):
        assert waiting not in {event.request_id for event in engine.step()}
        engine.check_integrity()
    # What was cached is there still.
    match = engine._loop.scheduler.prefix_cache.match(np.array(cached))
    assert match.num_tokens == 16 * 8
    engine.block_manager.free_blocks(match.block_ids)
    while engine.has_unfinished:
        engine.step()


def test_a_prompt_that_fits_by_eviction_is_admitted_at_once(crowded):
    late = crowded.submit(_prompt(16 * 9, seed=5), _params(2))
    assert late in {event.request_id for event in crowded.step()}
    crowded.check_integrity()


def test_a_blocked_prompt_is_looked_up_once_until_something_ends(crowded, monkeypatch):
    waiting = crowded.submit(_prompt(16 * 20, seed=5), _params(2))
    looked_up = _num_matches(crowded, monkeypatch)
    for _ in range(40):
        crowded.step()
    # Once more at most: what others were promised in the same step is taken then.
    assert len(looked_up) <= 2
    events = []
    while crowded.has_unfinished:
        events += crowded.step()
        crowded.check_integrity()
    assert [event.request_id for event in events][-2:] == [waiting] * 2
    assert len(looked_up) <= 4


def test_another_head_of_the_queue_is_looked_up(crowded, monkeypatch):
    blocked = crowded.submit(_prompt(16 * 20, seed=5), _params(2))
    small = crowded.submit(_prompt(20, seed=6), _params(2))
    crowded.step()
    looked_up = _num_matches(crowded, monkeypatch)
    crowded.abort(blocked)
    assert small in {event.request_id for event in crowded.step() if event.token_id is not None}
    assert looked_up == [20]


def test_a_blocked_prompt_gets_in_as_soon_as_what_it_shares_is_cached(make_engine):
    """Another prompt, still computed in chunks, brings the beginning that both have."""
    engine = make_engine(num_kv_blocks=BLOCKS, max_batch_size=4, prefill_max_tokens=100)
    shared = _prompt(16 * 16)
    first = engine.submit([*shared, 1], _params(40))
    second = engine.submit([*shared, 2], _params(40))
    began = []
    for step in range(60):
        began += [(event.request_id, step) for event in engine.step() if event.index == 0]
        engine.check_integrity()
        if not engine.has_unfinished:
            break
    (one, one_began), (other, other_began) = began
    assert (one, other) == (first, second)
    assert other_began - one_began <= 1
