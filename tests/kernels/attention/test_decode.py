"""Paged decode attention against the float64 reference, in memory full of NaN."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from paged_cases import (
    PagedProblem,
    assert_close_to_reference,
    paged_problem,
    same_bits,
)

import kernels
from kernels.attention.reference import reference_decode
from kernels.tiles.launch import SPLIT_TOKENS, Tile, decode_tile

Poison = Callable[..., torch.Tensor]


def _decode(problem: PagedProblem, implementation: Any, poisoned: Poison) -> torch.Tensor:
    """The result, computed into poisoned memory whose surroundings must stay as they are."""
    problem = problem.on(implementation.device)
    shape = tuple(problem.query.shape)
    out = poisoned(shape, problem.query.dtype, implementation.device)
    surroundings = out._base.isnan().sum() if out._base is not None else 0
    returned = kernels.paged_attention_decode(*problem.decode_arguments, out=out)
    assert returned is out
    assert out._base is not None
    assert int(out._base.isnan().sum()) == int(surroundings) - out.numel()
    return out.contiguous().cpu()


def _check(problem: PagedProblem, implementation: Any, poisoned: Poison) -> None:
    result = _decode(problem, implementation, poisoned)
    reference = reference_decode(*problem.decode_arguments)
    assert_close_to_reference(result, reference, problem)


@pytest.mark.parametrize("block_size", [16, 64])
def test_contexts_around_page_boundaries(
    implementation: Any, dtype: torch.dtype, block_size: int, poisoned: Poison
) -> None:
    p = block_size
    _check(
        paged_problem([p - 1, 0, p, 1, 2 * p - 1, p + 1, 0, 2 * p + 1], block_size=p, dtype=dtype),
        implementation,
        poisoned,
    )


@pytest.mark.parametrize("block_size", [16, 64])
def test_contexts_around_split_boundaries(
    implementation: Any, dtype: torch.dtype, block_size: int, poisoned: Poison
) -> None:
    s = SPLIT_TOKENS
    contexts = [s - 1, 1, s + 1, 0, s, 2 * s + 3]
    _check(
        paged_problem(contexts, heads=(1, 1), block_size=block_size, dtype=dtype),
        implementation,
        poisoned,
    )


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 17])
def test_query_groups(
    implementation: Any, dtype: torch.dtype, group: int, poisoned: Poison
) -> None:
    problem = paged_problem([5, 33, 18], heads=(2 * group, 2), dtype=dtype, seed=group)
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 128, 256])
def test_head_dimensions(
    implementation: Any, dtype: torch.dtype, head_dim: int, poisoned: Poison
) -> None:
    problem = paged_problem([21, 40], heads=(4, 2), head_dim=head_dim, dtype=dtype)
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("block_size", [1, 4, 24, 128])
def test_block_sizes(
    implementation: Any, dtype: torch.dtype, block_size: int, poisoned: Poison
) -> None:
    problem = paged_problem([9, 0, 70], block_size=block_size, dtype=dtype)
    _check(problem, implementation, poisoned)


def test_a_batch_of_empty_contexts(
    implementation: Any, dtype: torch.dtype, poisoned: Poison
) -> None:
    _check(paged_problem([0, 0], dtype=dtype), implementation, poisoned)


def test_a_batch_larger_than_the_scratch_of_torch(
    implementation: Any, dtype: torch.dtype, poisoned: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds two sequences of two blocks: two are taken, then two empty ones, then the last."""
    problem = paged_problem([20, 3, 0, 0, 17], dtype=dtype)
    monkeypatch.setattr(
        "kernels.attention.torch_ops._SCRATCH_ELEMENTS", 4 * problem.k_cache[0].numel()
    )
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_extreme_scores(
    implementation: Any, dtype: torch.dtype, sign: int, poisoned: Poison
) -> None:
    """Scores in the thousands, of either sign: a softmax without its maximum overflows."""
    problem = paged_problem(
        [40, SPLIT_TOKENS + 30], heads=(2, 1), head_dim=64, dtype=dtype, integers=True, sign=sign
    )
    device = implementation.device
    result = kernels.paged_attention_decode(*problem.on(device).decode_arguments, scale=1.0)
    reference = reference_decode(*problem.decode_arguments, scale=1.0)
    assert torch.isfinite(result).all()
    tolerance = 2e-3 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert float((result.cpu().double() - reference).abs().max()) < tolerance


def test_scale(implementation: Any, dtype: torch.dtype) -> None:
    problem = paged_problem([30, 4], dtype=dtype)
    arguments = problem.on(implementation.device).decode_arguments
    result = kernels.paged_attention_decode(*arguments, scale=0.6).cpu().double()
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    for scale, is_it in ((0.6, True), (0.25, False)):
        error = (result - reference_decode(*problem.decode_arguments, scale=scale)).abs().max()
        assert (float(error) < tolerance) is is_it


def test_strided_query_and_table(implementation: Any, dtype: torch.dtype, poisoned: Poison) -> None:
    """A query sliced from a projection, rows of a wider table, a cache of padded pages."""
    problem = paged_problem([17, 50, 3], heads=(4, 2), dtype=dtype)
    expected = _decode(problem, implementation, poisoned)
    batch, heads, dim = problem.query.shape
    fused = torch.full((batch, 3 * heads, dim + 8), float("nan"), dtype=dtype)
    fused[:, ::3, :dim] = problem.query
    wide = torch.full((batch, 9), -1, dtype=torch.int32)
    wide[:, 2 : 2 + problem.block_tables.shape[1]] = problem.block_tables
    blocks, kv_heads, size, _ = problem.k_cache.shape
    padded = torch.full((2, blocks, kv_heads, size, 2 * dim), float("nan"), dtype=dtype)
    padded[0, ..., :dim], padded[1, ..., :dim] = problem.k_cache, problem.v_cache
    strided = PagedProblem(
        fused[:, ::3, :dim],
        padded[0, ..., :dim],
        padded[1, ..., :dim],
        wide[:, 2 : 2 + problem.block_tables.shape[1]],
        problem.context_lens,
        problem.starts,
    )
    device = implementation.device
    moved = PagedProblem(*(_moved(t, device) for t in strided.prefill_arguments))
    assert not moved.query.is_contiguous()
    assert not moved.block_tables.is_contiguous()
    assert not moved.k_cache.is_contiguous()
    result = kernels.paged_attention_decode(*moved.decode_arguments).cpu()
    assert same_bits(result, expected)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device` with its strides kept."""
    if tensor._base is None:
        return tensor.to(device)
    base = tensor._base.to(device)
    return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def test_without_out_a_contiguous_result_is_allocated(
    implementation: Any, dtype: torch.dtype, poisoned: Poison
) -> None:
    problem = paged_problem([3, 20], dtype=dtype)
    result = kernels.paged_attention_decode(*problem.on(implementation.device).decode_arguments)
    assert result.is_contiguous()
    assert same_bits(result.cpu(), _decode(problem, implementation, poisoned))


def test_inside_and_outside_inference_mode(implementation: Any, dtype: torch.dtype) -> None:
    """What a call keeps for the next one must serve either."""
    problem = paged_problem([20, 3], dtype=dtype).on(implementation.device)
    with ThreadPoolExecutor(max_workers=1) as fresh_thread:

        def call(mode: bool) -> torch.Tensor:
            with torch.inference_mode(mode):
                return kernels.paged_attention_decode(*problem.decode_arguments).clone()

        first, second = fresh_thread.map(call, [True, False])
    assert same_bits(first, second)


def test_an_empty_batch(implementation: Any, dtype: torch.dtype) -> None:
    problem = paged_problem([4], dtype=dtype).on(implementation.device)
    result = kernels.paged_attention_decode(
        problem.query[:0],
        problem.k_cache,
        problem.v_cache,
        problem.block_tables[:0],
        problem.context_lens[:0],
    )
    assert tuple(result.shape) == (0, 2, 16)


def test_inputs_are_left_alone(implementation: Any, dtype: torch.dtype) -> None:
    problem = paged_problem([20, 0, 33], dtype=dtype).on(implementation.device)
    before = [tensor.clone() for tensor in problem.decode_arguments]
    kernels.paged_attention_decode(*problem.decode_arguments)
    for tensor, copy in zip(problem.decode_arguments, before, strict=True):
        assert same_bits(tensor, copy)


@pytest.mark.parametrize("serial", [False, True], ids=["parallel", "serial"])
def test_a_length_beyond_the_table_is_as_long_as_the_table(
    triton_device: torch.device, serial: bool
) -> None:
    """Only the kernel can say so where lengths stay on the GPU; the next row's table follows."""
    problem = paged_problem([SPLIT_TOKENS, 20]).on(triton_device)
    within = _launched(problem, serial)
    problem.context_lens[0] += 5
    assert same_bits(_launched(problem, serial), within)


def _mixed(dtype: torch.dtype) -> PagedProblem:
    contexts = [SPLIT_TOKENS + 9, 31, 2 * SPLIT_TOKENS, 16]
    return paged_problem(contexts, heads=(2, 1), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("serial", [False, True], ids=["parallel", "serial"])
def test_alone_equals_in_a_batch_bit_for_bit(
    triton_device: torch.device, dtype: torch.dtype, serial: bool
) -> None:
    problem = _mixed(dtype).on(triton_device)
    together = _launched(problem, serial)
    for sequence in range(4):
        for alone_serial in (False, True):
            alone = _launched(problem.alone(sequence), alone_serial)
            assert same_bits(alone[0], together[sequence])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_split_taken_from_the_batch_would_be_seen(
    triton_device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: with another split size the bits differ, and the test above fails."""
    from kernels.attention import decode

    def half_the_split(element_bytes: int, head_dim: int, group: int) -> Tile:
        tile = decode_tile(element_bytes, head_dim, group)
        constants = {**tile.constants, "SPLIT": SPLIT_TOKENS // 2}
        return Tile(constants, tile.num_warps, tile.num_stages)

    problem = _mixed(dtype).on(triton_device)
    together = _launched(problem, serial=False).cpu()
    monkeypatch.setattr(decode, "decode_tile", half_the_split)
    alone = torch.cat([_launched(problem.alone(b), serial=False) for b in range(4)]).cpu()
    long = [0, 2]
    assert not same_bits(alone[long], together[long])
    error = (alone.double() - together.double()).abs().max()
    assert float(error) < (1e-5 if dtype == torch.float32 else 2e-3)


def _launched(problem: PagedProblem, serial: bool) -> torch.Tensor:
    from kernels.attention.decode import launch_decode

    out = torch.full_like(problem.query, float("nan"))
    scale = problem.query.shape[2] ** -0.5
    launch_decode(*problem.decode_arguments, scale, out, serial=serial)
    return out
