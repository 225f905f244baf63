"""The three operations in two halves: what a step looks at once, and what every layer does.

Block tables, lengths and the slots of new tokens are the same in all layers of a step. A plan
checks what they hold, where that may be looked at, and chooses the implementation. It is then
called with the tensors of one layer after another, which are not checked: all caches must be cut
as the plan's own, and the rest must be as the public operation wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from kernels.attention.torch_ops import TorchAppend, TorchDecode, TorchPrefill
from kernels.attention.value_checks import (
    check_append_values,
    check_prefill_values,
    used_blocks,
)
from kernels.backend import device_of, reads_values, ring_serves, uses_triton

Append: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None
]
"""append(k_cache, v_cache, key [B, H_kv, D], value [B, H_kv, D], scales): writes the new tokens.
The scales are those of a cache of eight bits, or None."""

Attend: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor, torch.Tensor | None],
    torch.Tensor,
]
"""attend(query, k_cache, v_cache, scale, out, scales) -> out, both [rows, H_q, D]."""


def plan_append(
    k_cache: torch.Tensor,
    num_rows: int,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None = None,
) -> Append:
    """Plan `kernels.kv_append` of keys and values of `num_rows` rows.

    Raises
    ------
    KernelArgumentError
        Where values are looked at: an index out of range, or two rows bound for one slot.
    """
    num_blocks, _, block_size, _ = k_cache.shape
    if reads_values(k_cache):
        check_append_values(num_blocks, block_size, num_rows, block_idx, pos, batch_idx)
    if not uses_triton(k_cache):
        return TorchAppend(block_idx, pos, batch_idx)
    from kernels.attention.append import launch_append

    return partial(_append, launch_append, (block_idx, pos, batch_idx))


def plan_decode(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    query_heads: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    dtype: torch.dtype | None = None,
    window: int | None = None,
) -> Attend:
    """Plan `kernels.paged_attention_decode` of queries of so many heads and the caches' dtype.

    Over caches of eight bits the `dtype` of the queries is another, which is to be told. Layers
    with a `window` want a plan of their own.

    Raises
    ------
    KernelArgumentError
        Where values are looked at: a context that its table cannot hold, a block out of range.
    """
    num_blocks, kv_heads, block_size, _ = k_cache.shape
    if not uses_triton(k_cache):
        return TorchDecode(
            k_cache, *used_blocks(num_blocks, block_size, block_tables, context_lens), window
        )
    if reads_values(k_cache):
        used_blocks(num_blocks, block_size, block_tables, context_lens)
    launch: Callable[..., None]
    group = query_heads // kv_heads
    if ring_serves(k_cache, v_cache, group, append=False, dtype=dtype, window=window):
        from kernels.attention.hopper.ring_launch import launch_ring_decode as launch
    else:
        from kernels.attention.decode import launch_decode as launch

        if window is not None:
            launch = partial(launch, window=window)
    return partial(_attend, launch, (block_tables, context_lens))


def plan_prefill(
    k_cache: torch.Tensor,
    num_tokens: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    window: int | None = None,
) -> Attend:
    """Plan `kernels.paged_attention_prefill` of `num_tokens` queries.

    Layers with a `window` want a plan of their own.

    Raises
    ------
    KernelArgumentError
        Where values are looked at: chunks that do not follow one another in the queries or exceed
        their context, and what `plan_decode` refuses.
    """
    num_blocks, _, block_size, _ = k_cache.shape
    indices = block_tables, context_lens, query_start_loc
    if reads_values(k_cache):
        check_prefill_values(num_blocks, block_size, num_tokens, *indices)
    if not uses_triton(k_cache):
        return TorchPrefill(k_cache, *indices, window)
    launch: Callable[..., None]
    from kernels.attention.prefill import launch_prefill as launch

    if window is not None:
        launch = partial(launch, window=window)
    return partial(_attend, launch, indices)


def _append(
    launch: Callable[..., None],
    indices: tuple[Any, ...],
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    with device_of(k_cache):
        launch(k_cache, v_cache, key, value, *indices, scales)


def _attend(
    launch: Callable[..., None],
    indices: tuple[torch.Tensor, ...],
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    with device_of(k_cache):
        launch(query, k_cache, v_cache, *indices, scale, out, scales)
    return out
