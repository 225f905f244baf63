"""Requests with little left to compute enter the decode steps without a prefill."""

from __future__ import annotations

import numpy as np
import pytest

from engine import SamplingParams
from engine.transport.device_rows import KNOWN_TAIL

GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=12, ignore_eos=True, temperature=0.9, seed=3)


def _prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(11)
    return [random.integers(0, 1000, length).tolist() for length in lengths]


def _entering(engine, limit: int):
    """The engine, with requests of up to `limit` uncomputed tokens entering: as with graphs."""
    engine._loop.worker.runner.enter_limit = limit
    engine._loop.scheduler._enter_limit = limit
    return engine


def _prefilled_tokens(engine) -> list[int]:
    """Filled, as the engine runs, with how many tokens each prefill computes."""
    counts: list[int] = []
    compute = engine._loop.worker.runner.compute

    def counted(plan):
        counts.append(sum(chunk.end - chunk.start for chunk in plan.chunks))
        return compute(plan)

    engine._loop.worker.runner.compute = counted
    return counts


def _tokens(engine, prompts, params=GREEDY) -> list[list[int]]:
    tokens = [completion.token_ids for completion in engine.generate(prompts, params)]
    engine.check_integrity()
    return tokens


def test_prompts_of_one_token_are_never_prefilled(make_engine):
    engine = make_engine()
    counts = _prefilled_tokens(engine)
    tokens = _tokens(engine, _prompts(1, 1, 1, 5))
    assert counts == [5]
    assert len({tuple(one) for one in tokens}) == 4


def test_rows_that_enter_are_sent_with_their_first_step(make_engine):
    engine = _entering(make_engine(), KNOWN_TAIL)
    flush = engine._loop.worker.rows.send
    sent: list[int] = []
    engine._loop.worker.rows.send = lambda: sent.append(flush())
    for prompt in _prompts(1, 3, 2):
        engine.submit(prompt, GREEDY)
    engine.step()
    # One copy for all that the three rows and their first blocks change.
    assert len(sent) == 1
    assert sent[0] > 3 * KNOWN_TAIL


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_size": 4},
        {"block_size": 1},
        {"block_size": 4, "prefix_cache": False},
        {"block_size": 4, "num_kv_blocks": 12},
        {"block_size": 4, "num_kv_blocks": 12, "prefix_cache": False, "decode_first": True},
        {"max_batch_size": 2},
        {"prefill_max_tokens": 3},
    ],
    ids=str,
)
def test_it_makes_the_tokens_that_a_prefill_makes(make_engine, options, params):
    prompts = _prompts(1, 2, KNOWN_TAIL, KNOWN_TAIL + 1, 4, 20, 1, 5)
    expected = _tokens(_entering(make_engine(max_batch_size=1), 0), prompts, params)
    engine = _entering(make_engine(**options), KNOWN_TAIL)
    counts = _prefilled_tokens(engine)
    assert _tokens(engine, prompts, params) == expected
    if "num_kv_blocks" not in options:
        # Preempted requests are longer than their prompts.
        assert sum(counts) == KNOWN_TAIL + 1 + 20


def test_what_a_prefix_leaves_over_enters(make_engine):
    engine = _entering(make_engine(block_size=4), KNOWN_TAIL)
    (shared,) = _prompts(30)
    counts = _prefilled_tokens(engine)
    first = _tokens(engine, [shared])
    assert counts == [30]
    again = _tokens(engine, [shared, [*shared, 7, 8, 9]])
    assert counts == [30]
    assert again[0] == first[0]
    assert again[1] == _tokens(make_engine(), [[*shared, 7, 8, 9]])[0]


def test_a_prompt_that_entered_can_be_reused_while_its_request_runs(make_engine):
    engine = _entering(make_engine(block_size=4), KNOWN_TAIL)
    (prompt,) = _prompts(8)
    engine.submit(prompt, GREEDY)
    for _ in range(len(prompt) - 1):
        assert not engine.step()
    (event,) = engine.step()
    assert event.index == 0
    second = engine.submit(prompt, GREEDY)
    engine.step()
    assert engine._loop.unfinished[second].num_computed == len(prompt) - 1
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()


def test_blocks_promised_to_those_who_enter_are_not_promised_twice(make_engine):
    engine = _entering(make_engine(block_size=4, num_kv_blocks=5, prefix_cache=False), KNOWN_TAIL)
    preempt = engine._loop.scheduler._preempt_youngest
    preempted: list[bool] = []
    engine._loop.scheduler._preempt_youngest = lambda: (preempted.append(True), preempt())
    prompts = _prompts(*[1] * 9)
    one = SamplingParams(max_new_tokens=2, ignore_eos=True)
    assert _tokens(engine, prompts, one) == _tokens(make_engine(), prompts, one)
    assert not preempted


@pytest.mark.parametrize("num_steps", range(6))
def test_an_abort_frees_a_request_in_the_middle_of_its_prompt(make_engine, num_steps):
    engine = _entering(make_engine(block_size=4, prefix_cache=False), KNOWN_TAIL)
    request_id = engine.submit(_prompts(KNOWN_TAIL)[0], GREEDY)
    for _ in range(num_steps):
        engine.step()
    engine.abort(request_id)
    assert [event.finish_reason for event in engine.step()] == ["abort"]
    assert engine.block_manager.num_free_blocks == engine.num_kv_blocks
    assert not engine.has_unfinished
