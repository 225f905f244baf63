"""Drafted tokens: the same tokens in fewer launches, and no drafts where they do not pay."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine import ConfigError, Engine, EngineConfig, SamplingParams
from engine.running import step_loop
from engine.running.drafts import Drafts, Lookup, Worth, num_right, share
from engine.scheduling.rows import RowIndex, Rows

MODELS = ["random:gpt2-tiny", "random:llama-tiny", "random:qwen3-tiny"]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11] * 6, [3], [40 + place % 11 for place in range(90)], [1, 2, 3]]
GREEDY = SamplingParams(max_new_tokens=60, ignore_eos=True)
DRAWN = SamplingParams(max_new_tokens=60, ignore_eos=True, temperature=0.7, top_k=3, seed=5)
MANY = [GREEDY, DRAWN, DRAWN, GREEDY]


class Oracle:
    """Drafts what engines without drafts made, before half of the steps, and with wrong tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.brought: list[float] = []
        self._random = random.Random(7)
        monkeypatch.setattr(Worth, "allows", lambda _: self._random.random() < 0.5)
        monkeypatch.setattr(
            Worth, "saw_drafts", lambda _, seconds, count: self.brought.append(count)
        )
        monkeypatch.setattr(Worth, "saw_none", lambda _, seconds: None)
        monkeypatch.setattr(Drafts, "of", lambda _, *what: self._of(*what))

    def _of(self, rows: RowIndex, held: Rows, most: Iterable[int]) -> list[list[int]]:
        drafts = []
        for row, limit in zip(rows.tolist(), most, strict=True):
            request = held.holder(row)
            answer = self.answers[tuple(request.prompt.tolist())]
            seen = int(held.received[row])
            count = self._random.choice((limit, self._random.randrange(limit + 1)))
            draft = answer[seen : seen + count]
            if draft and self._random.random() < 0.3:
                draft[self._random.randrange(len(draft))] += 1
            drafts.append(draft)
        return drafts


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    return Oracle(monkeypatch)


def _engine(speculative: str | None, **options: object) -> Engine:
    made = {"model": MODELS[1], "device": "cpu", "block_size": 16, "max_batch_size": 4}
    return Engine(EngineConfig(**{**made, **options}, speculative=speculative))


def _tokens(speculative: str | None, params: object, **options: object) -> list[list[int]]:
    with closing(_engine(speculative, **options)) as engine:
        found = [list(one.token_ids) for one in engine.generate(PROMPTS, params)]
        engine.check_integrity()
        # Once more, over what the prefix cache has.
        assert [list(one.token_ids) for one in engine.generate(PROMPTS, params)] == found
        engine.check_integrity()
    return found


def _assert_the_same(oracle: Oracle, params: object, **options: object) -> None:
    plain = _tokens(None, params, **options)
    oracle.answers = {tuple(one): two for one, two in zip(PROMPTS, plain, strict=True)}
    assert _tokens("prompt-lookup", params, **options) == plain
    assert len(oracle.brought) > 10
    assert max(oracle.brought) > 2


@pytest.mark.parametrize("params", [GREEDY, DRAWN, MANY], ids=["greedy", "drawn", "both"])
@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_those_without_drafts(oracle: Oracle, model: str, params: object) -> None:
    _assert_the_same(oracle, params, model=model)


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 1},
        {"num_kv_blocks": 17},
        {"steps_in_flight": 3},
        {"mixed_prefill_tokens": 16},
        {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"prefill_max_tokens": 16},
    ],
    ids=str,
)
def test_tokens_are_the_same_with_other_options(oracle: Oracle, options: dict[str, object]) -> None:
    _assert_the_same(oracle, MANY, **options)


@pytest.mark.thorough
def test_ranks_take_the_same_tokens(oracle: Oracle) -> None:
    _assert_the_same(oracle, MANY, tensor_parallel_size=2)


def test_rows_that_end_leave_their_blocks_to_others(oracle: Oracle) -> None:
    """Requests of all lengths, many more than rows, in a cache that is hardly larger than four."""
    source = random.Random(3)
    prompts = [[source.randrange(200) for _ in range(source.randrange(1, 40))] for _ in range(30)]
    params = [SamplingParams(max_new_tokens=2 + 3 * place, ignore_eos=True) for place in range(30)]
    source.shuffle(params)
    found = []
    for speculative in (None, "prompt-lookup"):
        with closing(_engine(speculative, num_kv_blocks=22, prefix_cache=False)) as engine:
            ids = [engine.submit(*one) for one in zip(prompts, params, strict=True)]
            made: dict[int, list[int]] = {one: [] for one in ids}
            while engine.has_unfinished:
                for event in engine.step():
                    made[event.request_id].append(event.token_id)
                engine.check_integrity()
            found.append([made[one] for one in ids])
            # The device has nothing left to do either.
            with torch.inference_mode():
                engine._loop.worker.send_rows()
            assert not engine._loop.worker.rows.fields.remaining.any()
        oracle.answers = {tuple(one): two for one, two in zip(prompts, found[0], strict=True)}
    assert found[1] == found[0]
    assert max(oracle.brought) > 2


def test_a_stop_token_within_a_draft_ends_the_request(oracle: Oracle) -> None:
    plain = _tokens(None, GREEDY)
    oracle.answers = {tuple(one): two for one, two in zip(PROMPTS, plain, strict=True)}
    for place in (1, 17, 30, 58):
        stops = tuple(one[place] for one in plain)
        params = SamplingParams(max_new_tokens=60, ignore_eos=True, stop_token_ids=stops)
        expected = [
            one[: 1 + min(one.index(stop) for stop in stops if stop in one)] for one in plain
        ]
        assert _tokens("prompt-lookup", params) == expected


def test_text_comes_with_each_token(oracle: Oracle) -> None:
    """What is drafted, too, is delivered token by token."""
    plain = _tokens(None, GREEDY)
    oracle.answers = {tuple(one): two for one, two in zip(PROMPTS, plain, strict=True)}
    with closing(_engine("prompt-lookup")) as engine:
        for prompt, tokens in zip(PROMPTS, plain, strict=True):
            events = list(engine.stream([prompt], GREEDY))
            assert [event.token_id for event in events] == tokens
            assert [event.index for event in events] == list(range(60))
            assert [event.finish_reason for event in events] == [None] * 59 + ["length"]


def test_requests_that_ask_more_of_their_logits_are_not_drafted_for(oracle: Oracle) -> None:
    params = SamplingParams(max_new_tokens=40, ignore_eos=True, logprobs=2)
    assert _tokens("prompt-lookup", params) == _tokens(None, params)
    assert not oracle.brought


def test_a_lookup_finds_what_followed_the_last_tokens_last() -> None:
    lookup = Lookup(np.array([1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 1, 2], np.int32))
    assert lookup.draft(4) == []
    lookup.append([3])
    assert lookup.draft(3) == [5, 6, 1]
    assert lookup.draft(0) == []
    lookup.append([7, 1, 2, 3])
    assert lookup.draft(8) == [7, 1, 2, 3]
    assert Lookup(np.array([4, 4], np.int32)).draft(3) == []


def test_rows_are_drafted_for_by_their_prompts_and_answers() -> None:
    """Each by its own, as it grows, also where another takes its row."""
    drafts = Drafts()
    tokens = np.array([[7, 1, 2, 3, 0], [4, 4, 4, 4, 0]], np.int32)
    requests = [
        SimpleNamespace(request_id=place, prompt=np.array(prompt, np.int32))
        for place, prompt in enumerate(([1, 2, 3, 9, 8], [5], [6, 1, 2, 3, 4, 1, 2, 3]))
    ]
    held: Any = SimpleNamespace(
        holder=lambda row: requests[row], tokens=tokens, received=np.array([3, 3])
    )
    rows = np.array([0, 1])
    assert drafts.of(rows, held, [8, 8]) == [[], []]
    held.received[:] = 4
    assert drafts.of(rows, held, [8, 2]) == [[9, 8, 7, 1, 2, 3], [4]]
    requests[0], held.received[0] = requests[2], 0
    assert drafts.of(rows[:1], held, [1]) == [[4]]


def test_drafts_are_right_up_to_the_first_other_token() -> None:
    drafts = [[5, 6, 7], [], [1, 2], [3]]
    chosen = [[5, 6, 9, 9], [4], [2, 2, 0], [3, 8]]
    assert num_right(drafts, [np.array(one, np.int32) for one in chosen]).tolist() == [2, 0, 0, 1]


def _steps(worth: Worth, seconds: float, count: int = 5) -> None:
    worth.interrupt()
    for place in range(count):
        worth.saw_step(place * seconds)


def test_nothing_is_drafted_before_a_step_was_measured() -> None:
    worth = Worth()
    assert not worth.allows()
    _steps(worth, 1.0)
    assert worth.allows()


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.5])
def test_looking_in_vain_takes_little_of_the_time(seconds: float) -> None:
    worth, looked, steps = Worth(), 0.0, 0
    _steps(worth, 1.0)
    for _ in range(2000):
        if worth.allows():
            worth.saw_none(seconds)
            looked += seconds
        steps += 5
        _steps(worth, 1.0)
    assert looked <= 4 + seconds + 0.005 * steps
    # What takes less is done each time.
    assert looked == pytest.approx(2.0) if seconds < 0.005 else looked > 0.004 * steps


def test_drafts_that_do_not_pay_cost_little() -> None:
    worth, lost, steps = Worth(), 0.0, 0
    _steps(worth, 1.0)
    for _ in range(2000):
        if worth.allows():
            worth.saw_drafts(2.0, 1.5)
            lost += 0.5
        steps += 5
        _steps(worth, 1.0)
    assert 0.004 * steps < lost <= 4.5 + 0.005 * steps
    # As soon as they pay they are made each time, and may fail in between.
    while not worth.allows():
        _steps(worth, 1.0)
    for _ in range(10):
        worth.saw_drafts(2.0, 6.0)
        assert worth.allows()
        worth.saw_drafts(2.0, 1.0)
        assert worth.allows()
    # One look at a long text is not held against them for ever.
    worth.saw_none(1000.0)
    steps = 0
    while not worth.allows():
        steps += 5
        _steps(worth, 1.0)
    assert 300 < steps < 500
    # Nor is what was saved long ago counted for ever.
    for _ in range(10):
        worth.saw_drafts(2.0, 6.0)
    for _ in range(17):
        worth.saw_drafts(2.0, 1.0)
    assert not worth.allows()


def test_drafts_that_pay_are_made_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step takes a second, a launch with drafts two, and what is drafted is right."""
    seconds, num_steps = [0.0], [0]
    monkeypatch.setattr(step_loop, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    params = SamplingParams(max_new_tokens=160, ignore_eos=True)
    with closing(_engine("prompt-lookup", block_size=64, max_batch_size=1)) as engine:
        answer = list(engine.generate(PROMPTS[:1], params)[0].token_ids)
        monkeypatch.setattr(
            Drafts,
            "of",
            lambda _, rows, held, most: [
                answer[held.received[row] :][:limit]
                for row, limit in zip(rows.tolist(), most, strict=True)
            ],
        )
        worker = engine._loop.worker
        compute, decode = worker.compute, worker.decode

        def computed(plan: Any) -> Any:
            seconds[0] += 2.0
            return compute(plan)

        def decoded(plan: Any) -> None:
            seconds[0] += 1.0
            num_steps[0] += 1
            decode(plan)

        monkeypatch.setattr(worker, "compute", computed)
        monkeypatch.setattr(worker, "decode", decoded)
        seconds[0] = 0.0
        assert list(engine.generate(PROMPTS[:1], params)[0].token_ids) == answer
    # Steps are timed first, and each block of 64 takes one more for its next.
    assert num_steps[0] < 20
    assert seconds[0] < 160 / 3


def test_drafts_of_many_rows_share_a_launch() -> None:
    drafts = [[1, 2, 3, 4], [], [5], [6, 7, 8]]
    assert share(drafts, 8) == drafts
    assert share(drafts, 6) == [[1, 2], [], [5], [6, 7]]
    assert share(drafts, 2) == [[1], [], [5], []]
    assert share(drafts, 0) == [[], [], [], []]
    assert share([], 1) == []


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="speculative is 'ngram'; it must be 'prompt-lookup'"):
        EngineConfig(speculative="ngram")
