"""Random problems of every kind: minutes under the interpreter, seconds on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from paged_cases import assert_close_to_reference, paged_problem, same_bits

import kernels
from kernels.attention.reference import reference_append, reference_decode, reference_prefill

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("seed", range(60))
def test_random_attention(implementation: Any, dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 4))
    contexts = [int(rng.integers(0, 2 ** int(rng.integers(1, 10)))) for _ in range(5)]
    shape: dict[str, Any] = {
        "heads": (kv_heads * int(rng.integers(1, 10)), kv_heads),
        "head_dim": int(rng.choice([8, 16, 40, 64, 128])),
        "block_size": int(rng.choice([1, 8, 16, 48, 64, 128])),
        "dtype": dtype,
        "seed": seed,
    }
    problem = paged_problem(contexts, **shape)
    result = kernels.paged_attention_decode(*problem.on(implementation.device).decode_arguments)
    reference = reference_decode(*problem.decode_arguments)
    assert_close_to_reference(result.cpu(), reference, problem)

    chunks = [int(rng.integers(0, length + 1)) for length in contexts]
    problem = paged_problem(contexts, chunks=chunks, **shape)
    if problem.query.shape[0] == 0:
        return
    result = kernels.paged_attention_prefill(*problem.on(implementation.device).prefill_arguments)
    reference = reference_prefill(*problem.prefill_arguments)
    assert_close_to_reference(result.cpu(), reference, problem)


@pytest.mark.parametrize("seed", range(60))
def test_random_appends(implementation: Any, dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = implementation.device
    heads, dim, size = int(rng.integers(1, 14)), int(rng.choice([8, 24, 64])), 16
    caches = [torch.full((7, heads, size, dim), float("nan"), dtype=dtype) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    key, value = (torch.randn(6, heads, dim).to(dtype) for _ in range(2))
    slots = rng.permutation(7 * size)[:6]
    blocks = torch.from_numpy(np.where(rng.random(6) < 0.2, -1, slots // size)).int()
    positions = torch.from_numpy(slots % size).int()
    rows = torch.from_numpy(rng.integers(0, 6, 6)).int() if seed % 2 else None
    reference_append(*expected, key, value, blocks, positions, rows)
    moved = [cache.to(device) for cache in caches]
    index = [t if t is None else t.to(device) for t in (blocks, positions, rows)]
    kernels.kv_append(*moved, key.to(device), value.to(device), *index)
    for cache, wanted in zip(moved, expected, strict=True):
        assert same_bits(cache.cpu(), wanted)
