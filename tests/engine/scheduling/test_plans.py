"""Steps that are planned once for many: the same tokens, blocks and counters as planned each."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Engine, EngineConfig, KVBlockManager, SamplingParams
from engine.scheduling.plans import AlikeSteps
from engine.transport.device_rows import KNOWN_TAIL
from engine.transport.token_slots import TokenSlots

BLOCK_SIZE = 8


def _engine(**options: object) -> Engine:
    defaults = {"device": "cpu", "block_size": BLOCK_SIZE, "max_batch_size": 6, "num_kv_blocks": 60}
    return Engine(EngineConfig(**(defaults | options)))


def _entering(engine: Engine) -> Engine:
    """The engine, with requests entering that have several tokens to feed: as with graphs."""
    engine._loop.worker.runner.enter_limit = KNOWN_TAIL
    engine._loop.scheduler._enter_limit = KNOWN_TAIL
    return engine


def _planned_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlikeSteps, "after", classmethod(lambda cls, *_: None))


def _script(engine: Engine, seed: int) -> list[object]:
    """Requests that come, end, stop and are aborted at random; what was seen after each step."""
    generator = np.random.default_rng(seed)
    seen: list[object] = []
    submitted: list[int] = []
    for _ in range(60):
        if generator.random() < 0.15:
            length = int(generator.integers(1, 2 * BLOCK_SIZE))
            params = SamplingParams(
                max_new_tokens=int(generator.integers(1, 30)),
                ignore_eos=True,
                stop_token_ids=tuple(generator.integers(0, 256, 3).tolist()),
            )
            # Few different tokens, so that prompts share prefixes.
            prompt = generator.integers(0, 2, length).tolist()
            submitted.append(engine.submit(prompt, params))
        if submitted and generator.random() < 0.05:
            engine.abort(int(generator.choice(submitted)))
        events = engine.step()
        engine.check_integrity()
        rows, blocks = engine._loop.rows, engine.block_manager
        seen.append(
            [(one.request_id, one.token_id, one.index, one.finish_reason) for one in events]
        )
        seen.append([rows.length.tolist(), rows.launched.tolist(), rows.last_block.tolist()])
        seen.append([blocks.fill_levels.tolist(), blocks.refcounts.tolist()])
    return seen


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("enters", [False, True], ids=["prefilled", "entering"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 8},
        {"steps_in_flight": 3},
        {"prefix_cache": False, "decode_first": True},
    ],
    ids=str,
)
def test_everything_is_as_if_each_step_were_planned(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], enters: bool, seed: int
) -> None:
    prepared = _entering if enters else lambda engine: engine
    if "steps_in_flight" in options:
        # A device that lags as far as it may.
        monkeypatch.setattr(TokenSlots, "has_arrived", lambda slots, ticket: False)
    planned_once = _script(prepared(_engine(max_model_len=48, **options)), seed)
    _planned_each(monkeypatch)
    assert _script(prepared(_engine(max_model_len=48, **options)), seed) == planned_once


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every step that is planned."""
    calls: list[int] = []
    planned = KVBlockManager.append_to_last_blocks

    def counted(blocks: KVBlockManager, last_blocks: object) -> object:
        calls.append(1)
        return planned(blocks, last_blocks)

    monkeypatch.setattr(KVBlockManager, "append_to_last_blocks", counted)
    return calls


def test_a_batch_that_began_together_is_planned_once_a_block(calls: list[int]) -> None:
    engine = _engine(prefix_cache=False)
    for token in range(6):
        engine.submit([token], SamplingParams(max_new_tokens=4 * BLOCK_SIZE, ignore_eos=True))
    # One known token: the first step takes a block for it and samples at once.
    for _ in range(4 * BLOCK_SIZE):
        engine.step()
    assert not engine.has_unfinished
    assert len(calls) == 4


def test_steps_that_feed_known_tokens_are_planned_when_another_row_begins_to_sample(
    calls: list[int],
) -> None:
    engine = _entering(_engine(prefix_cache=False, block_size=64))
    for length in (1, 4, 4, 6):
        engine.submit(list(range(length)), SamplingParams(max_new_tokens=20, ignore_eos=True))
    sampling = [len(engine.step()) for _ in range(8)]
    assert sampling == [1, 1, 1, 3, 3, 4, 4, 4]
    assert len(calls) == 3
    engine.check_integrity()


def test_a_block_is_copied_by_the_first_of_the_steps_only() -> None:
    prompt = list(range(3 * BLOCK_SIZE // 2))
    params = SamplingParams(max_new_tokens=BLOCK_SIZE // 2, ignore_eos=True)
    engine = _engine()
    # Leaves the prompt's blocks in the cache, the last half full; what goes on there copies it.
    engine.generate([prompt], SamplingParams(max_new_tokens=1))
    (again,) = engine.generate([[*prompt, 99]], params)
    (alone,) = _engine(prefix_cache=False).generate([[*prompt, 99]], params)
    assert again.token_ids == alone.token_ids


def test_a_budget_that_ends_ends_the_steps_that_are_alike() -> None:
    engine = _engine(prefix_cache=False)
    short = engine.submit([1], SamplingParams(max_new_tokens=3, ignore_eos=True))
    long = engine.submit([2], SamplingParams(max_new_tokens=7, ignore_eos=True))
    served = [{event.request_id for event in engine.step()} for _ in range(7)]
    assert served == [{short, long}] * 3 + [{long}] * 4
    engine.check_integrity()
