"""A launch for which there is too little memory ends the requests that needed it, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine.worker.runner as running
from engine import Completion, Engine, SamplingParams
from engine.kv.memory import KVCache
from engine.transport.token_slots import TokenSlots
from engine.worker.runner import ModelRunner

GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=12, ignore_eos=True, temperature=0.9, seed=3)
PROMPTS = [list(range(9, 40)), list(range(100, 103)), list(range(300, 350))]


def _fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: int, half_done: bool = False
) -> None:
    """Let the call after the `before` first ones run out of memory, when it is done if so asked."""
    whole: Callable[..., Any] = getattr(owner, name)
    calls: list[None] = []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == before + 1:
            if half_done:
                whole(*args, **options)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(*args, **options)

    monkeypatch.setattr(owner, name, failing)


def _run(engine: Engine, params: list[SamplingParams]) -> list[Completion]:
    completions = engine.generate(PROMPTS, params)
    engine.check_integrity()
    assert not engine.has_unfinished
    # A row that still ran on the device would write to blocks that are others' by now.
    with torch.inference_mode():
        engine._loop.worker.rows.send()
    assert not engine._loop.worker.rows.fields.remaining.any()
    return completions


@pytest.mark.parametrize("before", [0, 1, 5])
def test_drawing_without_memory_ends_only_those_that_sample(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """After a prompt, in the first decode step, and in a later one."""
    params = [GREEDY, SAMPLED, GREEDY]
    right = _run(make_engine(), params)
    engine = make_engine()
    _fail_once(monkeypatch, running, "sample", before=before)
    failed, ended, other = _run(engine, params)
    assert [failed.token_ids, other.token_ids] == [right[0].token_ids, right[2].token_ids]
    assert ended.finish_reason == "error"
    assert ended.token_ids == right[1].token_ids[:before]
    assert [one.token_ids for one in _run(engine, params)] == [one.token_ids for one in right]


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (ModelRunner, "compute", 0),
        (ModelRunner, "sample_prompts", 0),
        (ModelRunner, "decode", 0),
        (ModelRunner, "decode", 4),
        (ModelRunner, "decode", 10),
    ],
)
@pytest.mark.parametrize("half_done", [False, True])
def test_a_launch_without_memory_leaves_the_others_and_the_books_right(
    make_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: int,
    half_done: bool,
) -> None:
    """Two run at a time, so that the third comes when the failure is over."""
    params = [GREEDY] * 3
    right = [one.token_ids for one in _run(make_engine(), params)]
    engine = make_engine(max_batch_size=2)
    _fail_once(monkeypatch, owner, name, before=before, half_done=half_done)
    first, second, third = _run(engine, params)
    assert {first.finish_reason, second.finish_reason} == {"error"}
    assert first.token_ids == right[0][: len(first.token_ids)]
    assert third.finish_reason == "length"
    assert third.token_ids == right[2]
    # Also what the prefix cache keeps of them was computed.
    assert [one.token_ids for one in _run(engine, params)] == right


def test_tokens_that_are_on_their_way_are_delivered_first(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = [one.token_ids for one in _run(make_engine(), [GREEDY] * 3)]
    # As on a GPU, where no token of the last launches has arrived yet.
    monkeypatch.setattr(TokenSlots, "has_arrived", lambda *_: False)
    _fail_once(monkeypatch, ModelRunner, "decode", before=6)
    failed = _run(make_engine(steps_in_flight=3), [GREEDY] * 3)
    assert [one.token_ids for one in failed] == [tokens[:7] for tokens in right]


def test_no_prefix_is_reused_that_a_failed_step_was_to_compute(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, engine = list(range(9, 41)), make_engine(block_size=16)
    longer = [*prompt, 5, 6, 7]
    [right] = make_engine(prefix_cache=False).generate([longer], GREEDY)
    engine.generate([[*prompt[:-1], 500]], GREEDY)
    # All of the prompt but its last token is cached: the first decode step is to compute that.
    _fail_once(monkeypatch, ModelRunner, "decode", before=0)
    [failed] = engine.generate([prompt], GREEDY)
    assert failed.finish_reason == "error"
    assert engine.generate([longer], GREEDY)[0].token_ids == right.token_ids


def test_a_copy_without_memory_ends_those_that_it_was_for(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = [one.token_ids for one in _run(make_engine(), [GREEDY] * 3)]
    engine = make_engine()
    _run(engine, [GREEDY] * 3)
    _fail_once(monkeypatch, KVCache, "copy_blocks", before=0)
    # The same prompts again share blocks that they would write to: these are copied first.
    reasons = [one.finish_reason for one in _run(engine, [GREEDY] * 3)]
    assert "error" in reasons
    assert [one.token_ids for one in _run(engine, [GREEDY] * 3)] == right


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("compute", {"mixed_prefill_tokens": 16}),
        ("decode", {"mixed_prefill_tokens": 16, "prefill_max_tokens": 1}),
    ],
    ids=["in-one-launch", "beside-the-step"],
)
def test_nobody_shares_a_block_that_a_failed_step_was_to_compute(
    make_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, int],
) -> None:
    """Of prompts that begin alike the first one's step fails, and the second was to enter then."""
    prompt = list(range(10, 90, 10))

    def run() -> tuple[list[int], str | None]:
        engine = make_engine(max_batch_size=4, block_size=4, **options)
        # All of it but its last token is cached.
        engine.generate([[*prompt[:7], 99]], SamplingParams(max_new_tokens=1))
        engine.submit(prompt, GREEDY)
        engine.step()
        second = engine.submit([*prompt, 3], GREEDY)
        engine.submit(list(range(100, 111)), GREEDY)
        if is_failing:
            _fail_once(monkeypatch, engine._loop.worker, name, before=0)
        events = []
        while engine.has_unfinished:
            events += engine.step()
        (end,) = (
            one.finish_reason for one in events if one.request_id == second and one.finish_reason
        )
        later = engine.generate([[*prompt, 3, 4]], GREEDY)[0].token_ids
        engine.check_integrity()
        return later, end

    is_failing = False
    right, end = run()
    assert end == "length"
    is_failing = True
    assert run() == (right, "error")
