"""A prefill's arrays, without padding and with it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from engine import SamplingParams
from engine.requests.request import Request
from engine.scheduling.plans import PrefillChunk, PrefillPlan
from engine.worker.prefill_graphs import _Bucket, prefill_bucket_sizes, sampled_bucket_sizes
from engine.worker.prefill_inputs import PrefillShape
from engine.worker.runner import ComputedPrompts

GREEDY = SamplingParams(max_new_tokens=4, ignore_eos=True)


def _request(row: int, num_tokens: int, block_ids: list[int]) -> Request:
    prompt = np.arange(100 * row, 100 * row + num_tokens, dtype=np.int32)
    return Request(row, prompt, GREEDY, 0, (), 0.0, row=row, block_ids=block_ids)


def _plan() -> PrefillPlan:
    """Of prompts in blocks of four tokens: a whole one, the middle of one and the end of one."""
    chunks = [
        PrefillChunk(_request(5, 6, [7, 3]), 0, 6),
        PrefillChunk(_request(2, 12, [9, 1, 4]), 3, 8),
        PrefillChunk(_request(0, 9, [2, 8, 6]), 8, 9),
    ]
    return PrefillPlan(chunks, [], [])


def test_chunks_lie_side_by_side():
    plan = _plan()
    shape = PrefillShape.of(plan, 4)
    assert (shape.num_tokens, shape.num_sequences, shape.num_columns) == (12, 3, 3)
    inputs = shape.views(shape.pack(plan, 4))
    assert inputs.token_ids.tolist() == [*range(500, 506), *range(203, 208), 8]
    assert inputs.positions.tolist() == [*range(6), *range(3, 8), 8]
    assert inputs.block_index.tolist() == [7, 7, 7, 7, 3, 3, 9, 1, 1, 1, 1, 6]
    assert inputs.block_offset.tolist() == [0, 1, 2, 3, 0, 1, 3, 0, 1, 2, 3, 0]
    assert inputs.block_tables.tolist() == [[7, 3, -1], [9, 1, -1], [2, 8, 6]]
    assert inputs.context_lens.tolist() == [6, 8, 9]
    assert inputs.query_start_loc.tolist() == [0, 6, 11, 12]
    # The second prompt is not complete: nothing is sampled after it.
    assert inputs.sampled_tokens.tolist()[:2] == [5, 11]
    assert inputs.sampled_rows.tolist()[:2] == [5, 0]
    assert inputs.sampled_positions.tolist()[:2] == [6, 9]


def test_padding_is_of_no_sequence_and_is_stored_nowhere():
    plan = _plan()
    exact, padded = PrefillShape.of(plan, 4), PrefillShape(20, 5, 6)
    packed = padded.pack(plan, 4)
    assert packed.shape == (padded.size,)
    inputs, whole = padded.views(packed), exact.views(exact.pack(plan, 4))
    for name in ("token_ids", "positions", "block_index", "block_offset"):
        assert getattr(inputs, name)[:12].tolist() == getattr(whole, name).tolist(), name
    assert inputs.block_index[12:].tolist() == [-1] * 8
    assert inputs.block_tables[:3, :3].tolist() == whole.block_tables.tolist()
    assert (inputs.block_tables[3:] == -1).all()
    assert (inputs.block_tables[:, 3:] == -1).all()
    assert inputs.query_start_loc.tolist() == [0, 6, 11, 12, 12, 12]
    assert inputs.context_lens.tolist() == [6, 8, 9, 0, 0]
    # What is sampled beyond the completed prompts is the first one's token once more.
    assert inputs.sampled_tokens.tolist() == [5, 11, 5, 5, 5]
    assert inputs.sampled_rows.tolist() == [5, 0, 5, 5, 5]
    assert inputs.sampled_positions.tolist() == [6, 9, 6, 6, 6]


def test_where_no_prompt_is_completed_nothing_is_sampled():
    chunk = PrefillChunk(_request(2, 12, [9, 1, 4]), 0, 8)
    shape = PrefillShape(20, 3, 6)
    inputs = shape.views(shape.pack(PrefillPlan([chunk], [], []), 4))
    assert inputs.sampled_tokens.tolist() == [0, 0, 0]


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_padding_changes_no_result(make_engine, prompts, prefix_cache):
    """Every prefill of a run is computed on padding too, before and after what it should store."""
    engine = make_engine(prefill_max_tokens=60, prefix_cache=prefix_cache, num_kv_blocks=80)
    runner = engine._loop.worker.runner
    compute, cache = runner.compute, engine._loop.worker._cache
    compared = []

    def twice(plan: PrefillPlan) -> ComputedPrompts:
        padded = PrefillShape(
            plan.num_tokens + 7, len(plan.chunks) + 2, engine._loop.worker.rows.num_columns
        )
        inputs = padded.views(torch.from_numpy(padded.pack(plan, 16)))
        before = cache.keys.clone()
        hidden = runner.compute_prompts(inputs)
        stored = cache.keys.clone()
        cache.keys.copy_(before)
        shape = PrefillShape.of(plan, 16)
        inputs = shape.views(torch.from_numpy(shape.pack(plan, 16)))
        expected = runner.compute_prompts(inputs)
        torch.testing.assert_close(hidden[: len(plan.chunks)], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stored, cache.keys, rtol=1e-4, atol=1e-5)
        compared.append(plan.num_tokens)
        return compute(plan)

    runner.compute = twice
    engine.generate(prompts, GREEDY)
    assert len(compared) > 8


def test_greedy_tokens_of_padded_prompts_are_those_of_the_prompts(make_engine, prompts):
    """What a captured prefill samples, places that repeat the first and all."""
    engine = make_engine(prefill_max_tokens=60, num_kv_blocks=80)
    runner = engine._loop.worker.runner
    token_slots = runner.token_slots.slots
    compute, sample_prompts = runner.compute, runner.sample_prompts
    padded_inputs, compared = [], []

    def padding(plan: PrefillPlan) -> ComputedPrompts:
        """The plan's blocks are the requests' own until its sequences decode."""
        padded = PrefillShape(
            plan.num_tokens + 7, len(plan.chunks) + 2, engine._loop.worker.rows.num_columns
        )
        padded_inputs.append(padded.views(torch.from_numpy(padded.pack(plan, 16))))
        return compute(plan)

    def both(plan: PrefillPlan, computed: ComputedPrompts) -> bool:
        is_sampled = sample_prompts(plan, computed)
        if is_sampled:
            inputs = padded_inputs[-1]
            hidden = runner.compute_prompts(inputs)
            fed = runner.rows.fields.last_token
            expected = token_slots.clone(), fed.clone()
            token_slots.fill_(-7)
            fed.fill_(-7)
            rows = [chunk.request.row for chunk in plan.chunks if chunk.completes_prompt]
            # A repeated place must not write another token, whatever its logits are.
            hidden[len(rows) :] = hidden[len(rows) :].neg()
            runner.sample_greedily(inputs, hidden, len(rows) + len(compared) % 3)
            assert fed[rows].tolist() == expected[1][rows].tolist()
            written = (token_slots != -7).nonzero().tolist()
            assert sorted(row for _, row in written) == sorted(rows)
            for slot, row in written:
                assert token_slots[slot, row] == expected[0][slot, row]
            assert (fed != -7).sum() == len(rows)
            token_slots.copy_(expected[0])
            fed.copy_(expected[1])
            compared.append(len(rows))
        return is_sampled

    runner.compute, runner.sample_prompts = padding, both
    engine.generate(prompts, GREEDY)
    assert len(compared) > 4
    assert max(compared) > 1


def test_buckets_waste_less_than_a_fifth():
    sizes = prefill_bucket_sizes(16384)
    assert sizes[:6] == [64, 128, 192, 256, 320, 384]
    assert sizes[-1] == 16384
    assert len(sizes) == 28
    for smaller, size in pairwise(sizes):
        assert smaller < size
        assert size <= 256 or (size - smaller - 1) / size < 0.2


@pytest.mark.parametrize("most", [1, 63, 64, 65, 100, 1024, 5000])
def test_the_largest_bucket_is_the_largest_prefill(most):
    sizes = prefill_bucket_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (8, [8]), (9, [8, 9]), (64, [8, 64]), (256, [8, 64, 256])],
)
def test_sampling_is_captured_for_few_prompts_and_for_all(most, sizes):
    assert sampled_bucket_sizes(most) == sizes


def test_as_many_prompts_are_sampled_as_the_plan_completes():
    graphs = {size: object() for size in sampled_bucket_sizes(100)}
    bucket = _Bucket(None, None, None, None, graphs)
    chosen = {count: bucket.sampling(count) for count in (0, 1, 8, 9, 64, 65, 100)}
    expected = {0: 8, 1: 8, 8: 8, 9: 64, 64: 64, 65: 100, 100: 100}
    assert chosen == {count: graphs[size] for count, size in expected.items()}
