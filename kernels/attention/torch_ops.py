"""The operations in torch: what runs where there is no GPU.

Two things dominate on a CPU. Small batches cost what the number of torch calls costs, so index
work is done in numpy. Large ones cost page faults, because the allocator returns a large buffer
to the system as soon as it is freed; so pages are gathered into a scratch buffer that is kept,
a few sequences at a time, small enough to stay in the processor's cache.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
import torch.nn.functional as F

from kernels.attention.value_checks import Ints, host_array

_SCRATCH_ELEMENTS = 512 * 1024


class _Scratch(threading.local):
    """Two buffers a thread, for gathered keys and values, that grow and are kept."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, rows: int, width: int) -> torch.Tensor:
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < rows * width:
            size = max(rows * width, _SCRATCH_ELEMENTS)
            # Made in inference mode, a tensor could not be written to outside it later.
            with torch.inference_mode(False):
                buffer = torch.empty(size, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[: rows * width].view(rows, width)


_scratch = _Scratch()


@torch.no_grad()
def torch_append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None,
) -> None:
    """`kernels.kv_append` for checked arguments."""
    blocks = host_array(block_idx)
    rows = None if batch_idx is None else host_array(batch_idx)
    positions = np.asarray(pos) if isinstance(pos, int) else host_array(pos)
    if positions.size != blocks.size:
        positions = np.broadcast_to(positions.reshape(-1), blocks.shape)
    if blocks.size and int(blocks.min()) < 0:
        kept = np.flatnonzero(blocks >= 0).astype(np.int32)
        rows = kept if rows is None else rows[kept]
        blocks, positions = blocks[kept], positions[kept]
    if rows is not None:
        selected = torch.from_numpy(rows.astype(np.int64))
        key, value = key.index_select(0, selected), value.index_select(0, selected)
    slots = (
        torch.from_numpy(blocks.astype(np.int64)),
        torch.from_numpy(positions.astype(np.int64).reshape(-1)),
    )
    k_cache.transpose(1, 2).index_put_(slots, key)
    v_cache.transpose(1, 2).index_put_(slots, value)


@torch.no_grad()
def torch_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: Ints,
    blocks: Ints,
    scale: float,
    out: torch.Tensor,
) -> None:
    """`kernels.paged_attention_decode` over the blocks that `used_blocks` found, into `out`."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    sequence_elements = max(1, blocks.shape[1] * kv_heads * block_size * head_dim)
    step = max(1, _SCRATCH_ELEMENTS // sequence_elements)
    for first in range(0, len(lengths), step):
        chunk = slice(first, first + step)
        _decode_chunk(
            query[chunk], k_cache, v_cache, lengths[chunk], blocks[chunk], scale, out[chunk]
        )


def _decode_chunk(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: Ints,
    blocks: Ints,
    scale: float,
    out: torch.Tensor,
) -> None:
    batch, query_heads, head_dim = query.shape
    kv_heads = k_cache.shape[1]
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest == 0:
        out.zero_()
        return
    columns = -(-longest // k_cache.shape[2])
    keys, values = _gather(k_cache, v_cache, blocks[:, :columns], longest)
    groups = query.reshape(batch * kv_heads, query_heads // kv_heads, head_dim)
    if query.dtype != torch.float32:
        groups, keys, values = groups.float(), keys.float(), values.float()
    scores = torch.bmm(groups, keys.transpose(1, 2)).mul_(scale)
    if shortest != longest:
        # A block's unused slots may hold anything, NaN too: mask the score, and zero the value,
        # because a weight of zero times NaN is NaN.
        beyond = torch.from_numpy(np.arange(shortest, longest) >= lengths[:, None])
        tail_scores = scores.view(batch, kv_heads, -1, longest)[..., shortest:]
        tail_scores.masked_fill_(beyond[:, None, None], float("-inf"))
        tail_values = values[:, shortest:].unflatten(0, (batch, kv_heads))
        tail_values.masked_fill_(beyond[:, None, :, None], 0.0)
    attended = torch.bmm(torch.softmax(scores, dim=-1), values)
    out.copy_(attended.view(batch, query_heads, head_dim))
    if shortest == 0:
        out[torch.from_numpy(lengths == 0)] = 0.0


@torch.no_grad()
def torch_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """`kernels.paged_attention_prefill` for checked arguments, into `out`."""
    lengths = host_array(context_lens).tolist()
    starts = host_array(query_start_loc).tolist()
    tables = host_array(block_tables)
    block_size = k_cache.shape[2]
    for b, length in enumerate(lengths):
        first, last = starts[b], starts[b + 1]
        if first == last:
            continue
        blocks = tables[b : b + 1, : -(-length // block_size)]
        keys, values = _gather(k_cache, v_cache, blocks, length)
        chunk = query[first:last].transpose(0, 1)
        if query.dtype != torch.float32:
            chunk, keys, values = chunk.float(), keys.float(), values.float()
        count = last - first
        mask = None
        if 1 < count < length:
            mask = torch.ones(count, length, dtype=torch.bool).tril_(length - count)
        attended = F.scaled_dot_product_attention(
            chunk[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=count == length,
            scale=scale,
            enable_gqa=chunk.shape[0] != keys.shape[0],
        )
        out[first:last] = attended[0].transpose(0, 1)


def _gather(
    k_cache: torch.Tensor, v_cache: torch.Tensor, blocks: Ints, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `longest` tokens of each row of `blocks`.

    Keys and values, ``[B * H_kv, longest, D]`` each: views of this thread's scratch,
    overwritten by the next call.
    """
    num_blocks, kv_heads, block_size, head_dim = k_cache.shape
    batch, columns = blocks.shape
    if k_cache.is_contiguous():
        # A (block, head) pair is one row, so one selection gives the heads-first layout.
        pairs = blocks.astype(np.int64)[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]
        rows = torch.from_numpy(pairs.reshape(-1))
        flat = (num_blocks * kv_heads, block_size * head_dim)
        k_rows, v_rows = k_cache.view(flat), v_cache.view(flat)
    else:
        rows = torch.arange(batch * kv_heads * columns)
        selected = torch.from_numpy(blocks.astype(np.int64))
        k_rows = k_cache[selected].transpose(1, 2).reshape(len(rows), block_size * head_dim)
        v_rows = v_cache[selected].transpose(1, 2).reshape(len(rows), block_size * head_dim)
    shape = (batch * kv_heads, columns * block_size, head_dim)
    keys = _scratch.take("keys", k_cache.dtype, len(rows), block_size * head_dim)
    values = _scratch.take("values", k_cache.dtype, len(rows), block_size * head_dim)
    torch.index_select(k_rows, 0, rows, out=keys)
    torch.index_select(v_rows, 0, rows, out=values)
    return keys.view(shape)[:, :longest], values.view(shape)[:, :longest]
