"""A plan serves every layer of a step: the same result as the public operation on each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_cases import PagedProblem, paged_problem, same_bits

import kernels
from kernels import KernelArgumentError
from kernels.attention.plans import plan_append, plan_decode, plan_prefill

LAYERS = (1, 2)


def _layers(problem: PagedProblem, device: torch.device) -> list[PagedProblem]:
    """The problem, and one of the same shape whose caches and queries hold something else."""
    other = PagedProblem(
        problem.query.neg() + 1, problem.k_cache.neg(), problem.v_cache * 2, problem.block_tables,
        problem.context_lens, problem.starts,
    )  # fmt: skip
    return [problem.on(device), other.on(device)]


@pytest.mark.parametrize("is_side_by_side", [False, True])
def test_attention(implementation: Any, is_side_by_side: bool) -> None:
    problem = paged_problem([0, 5, 16, 37], chunks=[0, 3, 16, 2], heads=(4, 2))
    one_each = paged_problem([0, 5, 16, 37], heads=(4, 2))
    if is_side_by_side:
        problem, one_each = problem.side_by_side(), one_each.side_by_side()
    first, *_ = layers = _layers(problem, implementation.device)
    prefill = plan_prefill(first.k_cache, len(first.query), *first.prefill_arguments[3:])
    for layer in layers:
        out = torch.empty_like(layer.query)
        assert prefill(layer.query, layer.k_cache, layer.v_cache, 0.3, out) is out
        expected = kernels.paged_attention_prefill(*layer.prefill_arguments, scale=0.3)
        assert same_bits(out, expected)
    first, *_ = layers = _layers(one_each, implementation.device)
    decode = plan_decode(first.k_cache, first.v_cache, 4, first.block_tables, first.context_lens)
    for layer in layers:
        out = torch.empty_like(layer.query)
        assert decode(layer.query, layer.k_cache, layer.v_cache, 0.3, out) is out
        expected = kernels.paged_attention_decode(*layer.decode_arguments, scale=0.3)
        assert same_bits(out, expected)


def test_append(implementation: Any) -> None:
    device = implementation.device
    blocks = torch.tensor([2, -1, 0], dtype=torch.int32, device=device)
    slots = torch.tensor([1, 0, 3], dtype=torch.int32, device=device)
    append = plan_append(torch.zeros(3, 2, 4, 16, device=device), 3, blocks, slots)
    for seed in LAYERS:
        generator = torch.Generator().manual_seed(seed)
        key, value = torch.randn(2, 3, 2, 16, generator=generator).to(device)
        planned, expected = torch.zeros(2, 2, 3, 2, 4, 16, device=device)
        append(*planned, key, value)
        kernels.kv_append(*expected, key, value, blocks, slots)
        assert expected.any()
        assert same_bits(planned, expected)


def test_a_plan_looks_at_values_where_that_is_free(implementation: Any) -> None:
    problem = paged_problem([20]).on(implementation.device)
    tables = problem.block_tables.clone()
    tables[0, 1] = 99
    indices = tables, problem.context_lens
    if problem.k_cache.is_cuda:
        pytest.skip("looking would stop the GPU")
    with pytest.raises(KernelArgumentError, match="block_tables must name blocks"):
        plan_decode(problem.k_cache, problem.v_cache, 2, *indices)
    with pytest.raises(KernelArgumentError, match="block_tables must name blocks"):
        plan_prefill(problem.k_cache, 1, *indices, problem.starts)
    block = torch.zeros(2, dtype=torch.int32, device=implementation.device)
    with pytest.raises(KernelArgumentError, match="a different slot for every row"):
        plan_append(problem.k_cache, 2, block, 3)
