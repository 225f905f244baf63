"""Who is admitted when, and within which limits."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.requests.request import Request
from engine.scheduling.admission import FifoAdmission, PackedAdmission
from engine.transport.token_slots import TokenSlots


def _prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(0, 1000, length).tolist() for length in lengths]


def _run(engine, prompts, new_tokens=4):
    """Run all prompts; returns, for each step, its prefill chunks as (request, start, end)."""
    plan_prefill = engine._loop.scheduler.plan_prefill
    steps: list[list[tuple[int, int, int]]] = []

    def recorded():
        plan = plan_prefill()
        chunks = plan.chunks if plan is not None else []
        steps.append([(c.request.request_id, c.start, c.end) for c in chunks])
        return plan

    engine._loop.scheduler.plan_prefill = recorded
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    ids = [engine.submit(prompt, params) for prompt in prompts]
    finished = []
    while engine.has_unfinished:
        finished += [event.request_id for event in engine.step() if event.finish_reason]
        engine.check_integrity()
    assert sorted(finished) == ids
    return [step for step in steps if step]


def test_a_prefill_keeps_its_token_budget_and_splits_a_long_prompt(make_engine):
    steps = _run(make_engine(prefill_max_tokens=50), _prompts(30, 120, 10))
    assert steps == [
        [(0, 0, 30), (1, 0, 20)],
        [(1, 20, 70)],
        [(1, 70, 120)],
        [(2, 0, 10)],
    ]


def test_a_prefill_keeps_its_batch_size(make_engine):
    steps = _run(make_engine(prefill_max_batch_size=2), _prompts(5, 5, 5, 5, 5))
    assert [len(step) for step in steps] == [2, 2, 1]


def test_a_prompt_that_is_continued_counts_in_the_batch(make_engine):
    engine = make_engine(prefill_max_tokens=50, prefill_max_batch_size=2)
    steps = _run(engine, _prompts(60, 5, 5))
    assert steps == [[(0, 0, 50)], [(0, 50, 60), (1, 0, 5)], [(2, 0, 5)]]


@pytest.mark.parametrize("options", [{"max_batch_size": 3}, {"max_active_requests": 3}], ids=str)
def test_no_more_requests_run_at_once_than_allowed(make_engine, options):
    engine = make_engine(**options)
    taken = []
    step = engine.step
    engine.step = lambda: (step(), taken.append(engine._loop.rows.num_taken))[0]
    _run(engine, _prompts(*[8] * 10), new_tokens=6)
    assert max(taken) == 3


def test_requests_join_as_soon_as_one_leaves(make_engine):
    engine = make_engine(max_batch_size=2)
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (3, 9, 3)]
    for prompt, one in zip(_prompts(4, 4, 4), params, strict=True):
        engine.submit(prompt, one)
    events = []
    while engine.has_unfinished:
        events += engine.step()
    order = [event.request_id for event in events if event.finish_reason]
    assert order == [0, 2, 1]


def test_steps_narrow_as_soon_as_the_shorter_requests_have_ended(make_engine):
    """Rows from the lowest: most tokens to come first, then most of them known, then in turn."""
    engine = make_engine()
    plan_decode, widths = engine._loop.scheduler.plan_decode, []

    def recorded():
        plan = plan_decode()
        widths.extend([plan.num_rows] if plan is not None else [])
        return plan

    engine._loop.scheduler.plan_decode = recorded
    for prompt, count in zip(_prompts(4, 4, 4, 9, 4), (3, 9, 6, 9, 9), strict=True):
        engine.submit(prompt, SamplingParams(max_new_tokens=count, ignore_eos=True))
    engine.step()
    holders = [one.request_id for one in engine._loop.rows.requests if one is not None]
    assert holders == [3, 1, 4, 2, 0]
    while engine.has_unfinished:
        engine.step()
    # The first token of each is the prefill's.
    assert widths == [5] * 2 + [4] * 3 + [3] * 3


def test_decode_first_lets_running_requests_go_before_new_prompts(make_engine):
    for decode_first in (True, False):
        engine = make_engine(decode_first=decode_first)
        params = SamplingParams(max_new_tokens=10, ignore_eos=True)
        running = engine.submit([1, 2], params)
        engine.step()
        late = engine.submit([3, 4], params)
        first = engine.step()[0].request_id
        assert first == (running if decode_first else late)


def test_packing_prefers_prompts_that_fit_the_budget_whole(make_engine):
    prompts = _prompts(30, 45, 18, 40)
    options = {"prefill_max_tokens": 50, "force_fifo_every": 100}
    fifo = _run(make_engine(admission="fifo", **options), prompts)
    packed = _run(make_engine(admission="pack", **options), prompts)
    assert [chunk[0] for chunk in fifo[0]] == [0, 1]
    assert packed == [[(1, 0, 45)], [(3, 0, 40)], [(0, 0, 30), (2, 0, 18)]]


def test_packing_looks_ahead_only_so_far(make_engine):
    engine = make_engine(
        admission="pack", admission_lookahead=2, prefill_max_tokens=50, force_fifo_every=100
    )
    steps = _run(engine, _prompts(10, 12, 50))
    assert steps[0] == [(1, 0, 12), (0, 0, 10)]


def _waiting(*lengths: int) -> deque[Request]:
    return deque(
        Request(i, np.zeros(length, np.int32), SamplingParams(), 0, (), 0.0)
        for i, length in enumerate(lengths)
    )


def test_forced_fifo_rounds_keep_a_long_prompt_from_starving():
    policy = PackedAdmission(lookahead=8, force_fifo_every=3)
    chosen = []
    for _ in range(6):
        policy.start_round()
        chosen.append(policy.choose(_waiting(100, 5, 9), 20, is_first=True))
    assert chosen == [2, 2, 0, 2, 2, 0]


def test_only_rounds_that_can_admit_somebody_count():
    policy = PackedAdmission(lookahead=8, force_fifo_every=3)
    chosen = []
    for step in range(9):
        policy.start_round()
        if step % 3 == 0:
            chosen.append(policy.choose(_waiting(100, 5, 9), 20, is_first=True))
    assert chosen == [2, 2, 0]


def test_a_head_that_found_no_room_in_its_round_stays_first():
    policy, waiting, chosen = PackedAdmission(lookahead=8, force_fifo_every=2), _waiting(100, 5), []
    for _ in range(4):
        policy.start_round()
        chosen.append(policy.choose(waiting, 20, is_first=True))
    waiting.popleft()
    policy.start_round()
    assert [*chosen, policy.choose(waiting, 20, is_first=True)] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("others_tokens", [5, 9])
@pytest.mark.parametrize("num_kv_blocks", [3, 64], ids=["few blocks", "one row"])
def test_a_long_prompt_is_not_passed_over_for_ever(make_engine, others_tokens, num_kv_blocks):
    """Short requests come all the time, in the rhythm in which rows, or blocks, fall free."""
    engine = make_engine(
        admission="pack",
        prefill_max_tokens=16,
        max_batch_size=1 if num_kv_blocks > 3 else 8,
        num_kv_blocks=num_kv_blocks,
        prefix_cache=False,
        force_fifo_every=4,
    )
    short = SamplingParams(max_new_tokens=others_tokens, ignore_eos=True)
    (prompt,) = _prompts(39)
    engine.submit([5] * 8, short)
    long = engine.submit(prompt, SamplingParams(max_new_tokens=2, ignore_eos=True))
    for _ in range(300):
        while engine.num_unfinished < 4:
            engine.submit([5] * 8, short)
        if long in {event.request_id for event in engine.step()}:
            return
    pytest.fail("300 steps passed it over")


def test_packing_takes_the_head_rather_than_standing_still():
    policy = PackedAdmission(lookahead=8, force_fifo_every=100)
    policy.start_round()
    assert policy.choose(_waiting(100, 90), 20, is_first=True) == 0
    assert policy.choose(_waiting(100, 90), 20, is_first=False) is None


def test_fifo_always_takes_the_head():
    assert FifoAdmission().choose(_waiting(100, 5), 20, is_first=False) == 0


def test_a_full_cache_makes_requests_wait_and_preempts_the_youngest(make_engine):
    engine = make_engine(num_kv_blocks=6, prefix_cache=False, max_batch_size=4)
    preempted = []
    preempt = engine._loop.scheduler._preempt_youngest

    def recorded():
        held = {r.request_id for r in engine._loop.rows.requests if r is not None}
        preempt()
        left = {r.request_id for r in engine._loop.rows.requests if r is not None}
        preempted.extend(held - left)

    engine._loop.scheduler._preempt_youngest = recorded
    prompts = _prompts(16, 16, 16)
    steps = _run(engine, prompts, new_tokens=40)
    assert preempted
    assert 0 not in preempted
    # A preempted sequence is prefilled again with what it had generated.
    again = [chunk for step in steps for chunk in step if chunk[2] > 16]
    assert {chunk[0] for chunk in again} == set(preempted)


@pytest.mark.parametrize("others_tokens", [2, 10], ids=["all end", "one goes on"])
def test_nobody_is_preempted_where_one_whose_end_is_on_its_way_leaves_its_blocks(
    make_engine, monkeypatch, others_tokens
):
    """The ended request's blocks are evictable rather than free: the prefix cache has them."""
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda slots, ticket: False)
    stopping, other = _prompts(13, 17)
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    third = make_engine().generate([stopping], params)[0].token_ids[2]
    engine = make_engine(num_kv_blocks=3, steps_in_flight=3)
    preempted = []
    engine._loop.scheduler._send_away = preempted.append
    engine.submit(stopping, replace(params, stop_token_ids=(third,)))
    engine.submit(other, replace(params, max_new_tokens=others_tokens))
    reasons = {}
    while engine.has_unfinished:
        reasons |= {one.request_id: one.finish_reason for one in engine.step()}
    assert reasons == {0: "stop", 1: "length"}
    assert not preempted


def test_a_whole_cache_held_for_reuse_gives_way_to_a_request_that_needs_it(make_engine):
    engine = make_engine(num_kv_blocks=6)
    prompt = _prompts(40)[0]
    _run(engine, [prompt], new_tokens=4)
    assert engine.block_manager.num_free_blocks < 6
    # Shares a partly filled block, and needs every block of the cache.
    _run(engine, [prompt[:37] + [5] * 50], new_tokens=9)


def test_a_batch_that_ends_with_its_budget_tells_the_device_nothing(make_engine):
    engine = make_engine(prefix_cache=False)
    flush, sent = engine._loop.worker.rows.send, []

    def counted():
        sent.append(flush())
        return sent[-1]

    engine._loop.worker.rows.send = counted
    params = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (6, 6, 6, 9)]
    for prompt, one in zip(_prompts(4, 4, 4, 4), params, strict=True):
        engine.submit(prompt, one)
    while engine.num_unfinished > 1:
        engine.step()
    sent.clear()
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()
    assert sent == [0, 0, 0]
    assert engine.block_manager.num_free_blocks == engine.num_kv_blocks


def test_a_request_that_stops_early_is_stopped_on_the_device(make_engine):
    engine = make_engine(prefix_cache=False)
    prompts = _prompts(4, 4)
    long = SamplingParams(max_new_tokens=20, ignore_eos=True)
    [stop] = [one.token_ids[5] for one in engine.generate(prompts[:1], long)]
    stopping = SamplingParams(max_new_tokens=20, ignore_eos=True, stop_token_ids=(stop,))
    first = engine.submit(prompts[0], stopping)
    engine.submit(prompts[1], long)
    while first in engine._loop.unfinished:
        engine.step()
    engine.step()
    first_remaining, second_remaining = engine._loop.worker.rows.fields.remaining[:2].tolist()
    assert first_remaining == 0
    assert second_remaining > 0


def test_a_full_cache_is_not_searched_for_every_request(make_engine, monkeypatch):
    """Blocks are evicted a 64th of the pool at a time, or as many as are missing."""
    engine = make_engine(block_size=4, num_kv_blocks=640, max_batch_size=8, max_model_len=60)
    generator = np.random.default_rng(0)

    def run(count: int, length: int) -> None:
        prompts = generator.integers(0, 1000, (count, length)).tolist()
        engine.generate(prompts, SamplingParams(max_new_tokens=1, ignore_eos=True))
        engine.check_integrity()

    for _ in range(10):
        run(8, 32)
    cache = engine._loop.scheduler.prefix_cache
    assert engine.block_manager.num_free_blocks == 0
    evicted = []
    evict = cache.evict
    monkeypatch.setattr(cache, "evict", lambda count: evicted.append(evict(count)) or evicted[-1])
    # Five requests of eight blocks take forty, and find them ten at a time.
    run(5, 32)
    assert evicted == [10] * 4
    # More than that at once, where one request misses more.
    run(1, 56)
    assert evicted[4:] == [14]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_answers_of_one_prompt_share_its_blocks(prefix_cache):
    engine = Engine(
        EngineConfig(
            model="random:qwen3-tiny",
            device="cpu",
            block_size=16,
            prefix_cache=prefix_cache,
            prefill_max_tokens=64,
        )
    )
    computed = []
    compute = engine._loop.worker.compute

    def noted(plan):
        computed.append(plan.num_tokens)
        return compute(plan)

    engine._loop.worker.compute = noted
    prompts = [list(range(1, 101)), list(range(200, 210))]
    params = SamplingParams(max_new_tokens=5, temperature=0.9, seed=1, n=6, ignore_eos=True)
    answers = engine.generate(prompts, params)
    # The first answer computes whole blocks for all; of the short prompt there are none.
    if prefix_cache:
        assert sum(computed) <= 100 + 5 * 4 + 6 * 10
        assert len(computed) < 6
    else:
        assert sum(computed) == 6 * 110
    alone = Engine(EngineConfig(model="random:qwen3-tiny", device="cpu", prefix_cache=False))
    assert [one.token_ids for one in answers] == [
        one.token_ids for one in alone.generate(prompts, params)
    ]
    engine.check_integrity()
