"""Problems for attention whose cache is of eight bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from fused_attention_cases import FusedProblem
from paged_cases import PagedProblem

from kernels.attention.reference import gather_context, reference_decode, reference_prefill
from kernels.linear.fp8 import FP8, LARGEST


def head_scales(kv_heads: int, *, is_power: bool = True, seed: int = 0) -> torch.Tensor:
    """Scales [2, H_kv] that tell heads, keys and values apart; powers of two, or between them."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-5, 1, (2, kv_heads), generator=generator).float()
    return torch.exp2(exponents + (0 if is_power else 0.4))


def stored(cache: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A cache [num_blocks, H_kv, block_size, D] in eight bits, by the scales of its heads."""
    return (cache.double() / scales[:, None, None]).clamp(-LARGEST, LARGEST).to(FP8)


def in_eight_bits(problem: PagedProblem, scales: torch.Tensor) -> PagedProblem:
    """The problem with its cache rounded."""
    keys, values = stored(problem.k_cache, scales[0]), stored(problem.v_cache, scales[1])
    return replace(problem, k_cache=keys, v_cache=values)


def fused_in_eight_bits(problem: FusedProblem, scales: torch.Tensor) -> FusedProblem:
    """The same of a problem with new tokens, before and after they are appended."""
    keys, values = stored(problem.k_cache, scales[0]), stored(problem.v_cache, scales[1])
    after = in_eight_bits(problem.after, scales)
    return replace(problem, k_cache=keys, v_cache=values, after=after)


def as_floats(problem: PagedProblem, scales: torch.Tensor) -> PagedProblem:
    """What the cache stands for, in the queries' dtype: torch's own error is of this."""
    caches = zip((problem.k_cache, problem.v_cache), scales, strict=True)
    keys, values = (
        (cache.double() * scale[:, None, None]).to(problem.query.dtype) for cache, scale in caches
    )
    return replace(problem, k_cache=keys, v_cache=values)


def decoded(problem: PagedProblem, scales: torch.Tensor) -> torch.Tensor:
    """Attention over what the cache stands for, float64."""
    return reference_decode(*problem.decode_arguments, scales=scales)


def prefilled(problem: PagedProblem, scales: torch.Tensor) -> torch.Tensor:
    """The same of chunks of queries."""
    return reference_prefill(*problem.prefill_arguments, scales=scales)


def new_value(problem: FusedProblem, row: int, scales: torch.Tensor) -> torch.Tensor:
    """The value [H_kv, D] of a row's new token as the cache has it, float64."""
    after = problem.after
    table, length = after.block_tables[row], int(after.context_lens[row])
    return gather_context(after.v_cache, table, length, scales[1])[:, -1]
