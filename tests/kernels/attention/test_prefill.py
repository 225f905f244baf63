"""Paged prefill attention over ragged chunks, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
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
from kernels.attention.reference import reference_prefill

Poison = Callable[..., torch.Tensor]

# Contexts and the chunk of queries at the end of each: whole prompts, later chunks, single
# queries, a sequence without queries, one without context.
RAGGED = [
    pytest.param([20, 33, 7], [20, 33, 7], id="whole-prompts"),
    pytest.param([40, 18, 70], [9, 1, 66], id="later-chunks"),
    pytest.param([5, 30, 0, 12, 65], [5, 0, 0, 1, 64], id="empty-chunks"),
    pytest.param([1, 1, 1, 1, 2], [1, 1, 1, 1, 1], id="single-queries"),
    pytest.param([64, 128], [64, 65], id="tile-boundaries"),
]


def _prefill(problem: PagedProblem, implementation: Any, poisoned: Poison) -> torch.Tensor:
    problem = problem.on(implementation.device)
    out = poisoned(tuple(problem.query.shape), problem.query.dtype, implementation.device)
    assert out._base is not None
    surroundings = int(out._base.isnan().sum()) - out.numel()
    assert kernels.paged_attention_prefill(*problem.prefill_arguments, out=out) is out
    assert int(out._base.isnan().sum()) == surroundings
    return out.contiguous().cpu()


def _check(problem: PagedProblem, implementation: Any, poisoned: Poison) -> None:
    result = _prefill(problem, implementation, poisoned)
    reference = reference_prefill(*problem.prefill_arguments)
    assert_close_to_reference(result, reference, problem)


@pytest.mark.parametrize(("contexts", "chunks"), RAGGED)
@pytest.mark.parametrize("block_size", [16, 64])
def test_ragged_chunks(
    implementation: Any,
    dtype: torch.dtype,
    contexts: list[int],
    chunks: list[int],
    block_size: int,
    poisoned: Poison,
) -> None:
    problem = paged_problem(
        contexts, chunks=chunks, heads=(1, 1), block_size=block_size, dtype=dtype
    )
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 17])
def test_query_groups(
    implementation: Any, dtype: torch.dtype, group: int, poisoned: Poison
) -> None:
    problem = paged_problem([24, 10], chunks=[20, 3], heads=(2 * group, 2), dtype=dtype)
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("head_dim", [24, 32, 64, 128, 256])
def test_head_dimensions(
    implementation: Any, dtype: torch.dtype, head_dim: int, poisoned: Poison
) -> None:
    problem = paged_problem([30], chunks=[21], heads=(2, 1), head_dim=head_dim, dtype=dtype)
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("block_size", [1, 4, 24, 128])
def test_block_sizes(
    implementation: Any, dtype: torch.dtype, block_size: int, poisoned: Poison
) -> None:
    problem = paged_problem([9, 70], chunks=[9, 30], block_size=block_size, dtype=dtype)
    _check(problem, implementation, poisoned)


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_extreme_scores(implementation: Any, dtype: torch.dtype, sign: int) -> None:
    problem = paged_problem(
        [50, 20], chunks=[9, 20], heads=(2, 1), head_dim=64, dtype=dtype, integers=True, sign=sign
    )
    moved = problem.on(implementation.device)
    result = kernels.paged_attention_prefill(*moved.prefill_arguments, scale=1.0)
    reference = reference_prefill(*problem.prefill_arguments, scale=1.0)
    assert torch.isfinite(result).all()
    tolerance = 2e-3 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert float((result.cpu().double() - reference).abs().max()) < tolerance


def test_rows_of_no_sequence_are_left_as_they_are(
    implementation: Any, dtype: torch.dtype, poisoned: Poison
) -> None:
    """A query padded to a bucket's size: rows past the last chunk stay NaN."""
    problem = paged_problem([20, 9], chunks=[5, 9], dtype=dtype)
    expected = _prefill(problem, implementation, poisoned)
    padding = torch.full((70, 2, 16), float("nan"), dtype=dtype)
    problem.query = torch.cat([problem.query, padding])
    moved = problem.on(implementation.device)
    out = torch.full_like(moved.query, float("nan"))
    kernels.paged_attention_prefill(*moved.prefill_arguments, out=out)
    assert same_bits(out[:14].cpu(), expected)
    assert bool(out[14:].isnan().all())


def test_values_behind_their_keys(
    implementation: Any, dtype: torch.dtype, poisoned: Poison
) -> None:
    problem = paged_problem([20, 9], chunks=[5, 9], heads=(4, 2), dtype=dtype)
    expected = _prefill(problem, implementation, poisoned)
    beside = problem.on(implementation.device).side_by_side()
    result = kernels.paged_attention_prefill(*beside.prefill_arguments)
    assert same_bits(result.cpu(), expected)


def test_a_strided_query(implementation: Any, dtype: torch.dtype, poisoned: Poison) -> None:
    problem = paged_problem([20, 9], chunks=[5, 9], heads=(4, 2), dtype=dtype)
    expected = _prefill(problem, implementation, poisoned)
    moved = problem.on(implementation.device)
    rows, heads, dim = moved.query.shape
    device = moved.query.device
    fused = torch.full((rows, 3 * heads, dim + 8), float("nan"), dtype=dtype, device=device)
    fused[:, ::3, :dim] = moved.query
    moved.query = fused[:, ::3, :dim]
    result = kernels.paged_attention_prefill(*moved.prefill_arguments)
    assert same_bits(result.cpu(), expected)


def test_the_last_query_agrees_with_decode(implementation: Any, dtype: torch.dtype) -> None:
    contexts = [20, 65, 1]
    problem = paged_problem(contexts, dtype=dtype).on(implementation.device)
    prefill = kernels.paged_attention_prefill(*problem.prefill_arguments)
    decode = kernels.paged_attention_decode(*problem.decode_arguments)
    tolerance = 5e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert float((prefill - decode).float().abs().max()) <= tolerance


def test_a_length_beyond_the_table_is_as_long_as_the_table(triton_device: torch.device) -> None:
    """Only the kernel can say so where lengths stay on the GPU; the next row's table follows."""
    from kernels.attention.prefill import launch_prefill

    problem = paged_problem([32, 20], chunks=[9, 3]).on(triton_device)
    within, beyond = (torch.empty_like(problem.query) for _ in range(2))
    launch_prefill(*problem.prefill_arguments, 0.25, within)
    problem.context_lens[0] += 5
    launch_prefill(*problem.prefill_arguments, 0.25, beyond)
    assert same_bits(beyond, within)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_depends_neither_on_its_chunk_nor_on_its_batch(
    triton_device: torch.device, dtype: torch.dtype
) -> None:
    """The same query row, bit for bit, in one chunk or in two, alone or among others."""
    problem = paged_problem([90, 33], chunks=[80, 33], heads=(3, 1), dtype=dtype).on(triton_device)
    whole = kernels.paged_attention_prefill(*problem.prefill_arguments)
    alone = problem.alone(0)
    assert same_bits(kernels.paged_attention_prefill(*alone.prefill_arguments), whole[:80])
    for first, count in ((0, 37), (37, 43)):
        part = PagedProblem(
            problem.query[first : first + count],
            problem.k_cache,
            problem.v_cache,
            problem.block_tables[:1],
            torch.tensor([10 + first + count], dtype=torch.int32, device=triton_device),
            torch.tensor([0, count], dtype=torch.int32, device=triton_device),
        )
        result = kernels.paged_attention_prefill(*part.prefill_arguments)
        assert same_bits(result, whole[first : first + count])
