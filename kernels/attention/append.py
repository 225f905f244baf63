# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""KV append in Triton.

One program writes one row with all its heads, or where rows are many some heads of four
(`kernels.tiles.launch.append_tiles`), which makes every access 16 bytes wide. It is launched before
the kernel ahead of it has ended, and reads the row and where it goes to at once: what an append
takes is mostly launch and latency (reports/decode.md).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.attention.cache_tile import head_scales, rounded, slot_of, store_cached
from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.tiles.launch import append_tile


@triton.jit
def _own_places(ROWS: tl.constexpr, HEADS: tl.constexpr):
    """The row of the call that each of the program's (row, head) pairs belongs to.

    [ROWS * HEADS, 1], or one number for a single row, whose block is then read once.
    """
    if ROWS == 1:
        return tl.program_id(0)
    else:
        pair = tl.arange(0, ROWS * HEADS)
        return tl.program_id(0) * ROWS + (pair // HEADS)[:, None]


@triton.jit(
    do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["block_idx", "pos", "batch_idx"]
)
def append_rows(
    k_cache,
    v_cache,
    key,
    value,
    block_idx,
    pos,
    batch_idx,
    num_rows,
    cache_stride_block,
    cache_stride_head,
    cache_stride_slot,
    key_stride_row,
    key_stride_head,
    value_stride_row,
    value_stride_head,
    scales,
    H: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    D_PAD: tl.constexpr,
    COMMON: tl.constexpr,
    PDL: tl.constexpr,
):
    """Row i goes to block_idx[i] at pos[i], or where COMMON at the one position in `pos`.

    Where `batch_idx` is not None, row batch_idx[i] goes there. A negative block skips the row.
    The `scales` are those of a cache of eight bits, or None.
    """
    EIGHT_BITS: tl.constexpr = scales is not None
    release_consumers(PDL)
    await_producers(PDL)
    place = _own_places(ROWS, HEADS)
    in_call = place < num_rows
    block = tl.load(block_idx + place, mask=in_call, other=-1)
    if batch_idx is None:
        row = tl.where(in_call, place, 0)
    else:
        # What batch_idx says of a row that goes nowhere may be anything.
        row = tl.where(block >= 0, tl.load(batch_idx + place, mask=in_call, other=0), 0)
    position = tl.load(pos) if COMMON else tl.load(pos + place, mask=in_call, other=0)

    head = (tl.program_id(1) * HEADS + tl.arange(0, ROWS * HEADS) % HEADS)[:, None]
    dim = tl.arange(0, D_PAD)[None, :]
    in_row = (head < H) & (dim < D)
    row = row.to(tl.int64)
    new_key = tl.load(
        key + row * key_stride_row + head * key_stride_head + dim, mask=in_row, other=0.0
    )
    new_value = tl.load(
        value + row * value_stride_row + head * value_stride_head + dim, mask=in_row, other=0.0
    )
    slot = slot_of(block, position, cache_stride_block, cache_stride_slot)
    slot += head * cache_stride_head + dim
    is_written = in_row & (block >= 0)
    # Streaming stores: L2 may write their lines back first.
    key_scale, value_scale = head_scales(scales, head, H)
    store_cached(k_cache, slot, rounded(new_key, key_scale, EIGHT_BITS), is_written, ".cs")
    store_cached(v_cache, slot, rounded(new_value, value_scale, EIGHT_BITS), is_written, ".cs")


def launch_append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int | torch.Tensor,
    batch_idx: torch.Tensor | None,
    scales: torch.Tensor | None = None,
) -> None:
    """`kernels.kv_append` for checked arguments."""
    rows = block_idx.shape[0]
    if rows == 0 or key.shape[0] == 0:
        return
    _, heads, block_size, head_dim = k_cache.shape
    tile = append_tile(heads, head_dim, rows)
    if isinstance(pos, int):
        pos = _device_position(pos, block_size, k_cache.device)
    grid = (
        triton.cdiv(rows, tile.constants["ROWS"]),
        triton.cdiv(heads, tile.constants["HEADS"]),
    )
    append_rows[grid](
        k_cache,
        v_cache,
        key,
        value,
        block_idx,
        pos,
        batch_idx,
        rows,
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        scales,
        H=heads,
        D=head_dim,
        COMMON=batch_idx is None and pos.numel() != rows,
        **tile.constants,
        **launch_options(launches_early(key)),
        num_warps=tile.num_warps,
    )


def _device_position(pos: int, block_size: int, device: torch.device) -> torch.Tensor:
    """`pos` as a one-element tensor, so that no Python int reaches a kernel.

    A Python int would re-specialise the kernel on 1 and on multiples of 16. Outside graph capture
    the element is a view of a table made once; a table made during capture would be filled only
    at replay.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.full((1,), pos, dtype=torch.int32, device=device)
    return _positions(block_size, device)[pos : pos + 1]


@cache
def _positions(block_size: int, device: torch.device) -> torch.Tensor:
    table = torch.arange(block_size, dtype=torch.int32, device=device)
    if device.type == "cuda":
        # Whoever comes next may be on another stream.
        torch.cuda.current_stream(device).synchronize()
    return table
