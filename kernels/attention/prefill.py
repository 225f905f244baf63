# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Paged prefill attention in Triton over ragged chunks of queries.

The grid cannot know how many tiles each chunk needs without reading lengths back, so it has as
many as any split of the tokens over the sequences could need, and each program finds its sequence
by a binary search in `query_start_loc`. Sequence b's tiles begin at number
``query_start_loc[b] // BLOCK_Q + b``, which leaves room for one partly filled tile a sequence.
"""

import torch
import triton
import triton.language as tl

from kernels.attention.cache_tile import (
    block_of,
    head_scales,
    load_cached,
    tile_slots,
    window_start,
)
from kernels.attention.running_softmax import LOG2_E, refuse_interpreted_bfloat16
from kernels.tiles.launch import prefill_tile


@triton.jit
def _sequence_of_tile(query_start_loc, tile, num_sequences, BLOCK_Q: tl.constexpr):
    """The last sequence whose first tile is at or before `tile`."""
    low = 0
    high = num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        first_tile = tl.load(query_start_loc + middle) // BLOCK_Q + middle
        if first_tile <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(
    do_not_specialize=["num_sequences", "max_context", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "context_lens", "query_start_loc"],
)
def prefill_attention(
    query,
    k_cache,
    v_cache,
    block_tables,
    context_lens,
    query_start_loc,
    out,
    scale_log2,
    num_sequences,
    max_context,
    query_stride_row,
    query_stride_head,
    cache_stride_block,
    cache_stride_head,
    cache_stride_slot,
    table_stride,
    out_stride_row,
    out_stride_head,
    scales,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """`BLOCK_Q` query tokens of one sequence with all query heads of one KV head.

    With a WINDOW, each attends to so many tokens at most, and what no query sees is not read.
    """
    EIGHT_BITS: tl.constexpr = scales is not None
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    sequence = _sequence_of_tile(query_start_loc, tile, num_sequences, BLOCK_Q)
    chunk_start = tl.load(query_start_loc + sequence)
    chunk_len = tl.load(query_start_loc + sequence + 1) - chunk_start
    first_query = (tile - chunk_start // BLOCK_Q - sequence) * BLOCK_Q
    if first_query < chunk_len:
        length = tl.minimum(tl.load(context_lens + sequence), max_context)
        row = tl.arange(0, BLOCK_M)
        dim = tl.arange(0, D_PAD)
        token = tl.arange(0, BLOCK_N)
        in_chunk = first_query + row // G
        is_query = (row < BLOCK_Q * G) & (in_chunk < chunk_len)
        head = kv_head * G + row % G
        in_head = dim < D
        query_row = (chunk_start + in_chunk).to(tl.int64)
        row_mask = is_query[:, None] & in_head[None, :]
        q = tl.load(
            query
            + query_row[:, None] * query_stride_row
            + head[:, None] * query_stride_head
            + dim[None, :],
            mask=row_mask,
            other=0.0,
        )
        query_position = length - chunk_len + in_chunk
        # The tile's last query sees the most keys; none of its rows looks further.
        last_query = tl.minimum(first_query + BLOCK_Q, chunk_len)
        last = length - chunk_len + last_query

        table = block_tables + sequence.to(tl.int64) * table_stride
        k_head = k_cache + kv_head.to(tl.int64) * cache_stride_head
        v_head = v_cache + kv_head.to(tl.int64) * cache_stride_head
        key_scale, value_scale = head_scales(scales, kv_head, tl.num_programs(0))
        if EIGHT_BITS:
            scale_log2 *= key_scale
        run_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        run_sum = tl.zeros((BLOCK_M,), tl.float32)
        run_acc = tl.zeros((BLOCK_M, D_PAD), tl.float32)
        first = 0
        if WINDOW is not None:
            seen_from = window_start(length - chunk_len + first_query, WINDOW)
            first = seen_from // BLOCK_N * BLOCK_N
        next_block = block_of(table, first, last, PAGE)
        for start in tl.range(first, last, BLOCK_N):
            page, slots, mask, _ = tile_slots(
                table, next_block, start, last,
                cache_stride_block, cache_stride_slot, token, dim, in_head, PAGE, BLOCK_N,
            )  # fmt: skip
            next_block = block_of(table, start + BLOCK_N, last, PAGE)
            if WINDOW is not None:
                mask &= (start + token >= seen_from)[:, None]
            k = load_cached(k_head + page, slots, mask, q.dtype)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            # A row that is no query looks at one key, so that its softmax stays finite.
            limit = tl.where(is_query, query_position, 0 if WINDOW is None else last - 1)
            is_seen = (start + token)[None, :] <= limit[:, None]
            if WINDOW is not None:
                is_seen &= (start + token)[None, :] >= window_start(limit, WINDOW)[:, None]
            scores = tl.where(is_seen, scores, float("-inf"))
            new_max = tl.maximum(run_max, tl.max(scores, axis=1))
            base = new_max
            if WINDOW is not None:
                # The window of a later query may begin behind this tile.
                base = tl.where(new_max == float("-inf"), 0.0, new_max)
            fade = tl.exp2(run_max - base)
            weights = tl.exp2(scores - base[:, None])
            run_sum = tl.fma(run_sum, fade, tl.sum(weights, axis=1))
            v = load_cached(v_head + page, slots, mask, q.dtype)
            run_acc = tl.dot(
                weights.to(v.dtype), v, run_acc * fade[:, None], input_precision="ieee"
            )
            run_max = new_max

        result = run_acc / run_sum[:, None]
        if EIGHT_BITS:
            result *= value_scale
        tl.store(
            out
            + query_row[:, None] * out_stride_row
            + head[:, None] * out_stride_head
            + dim[None, :],
            result.to(out.dtype.element_ty),
            mask=row_mask,
        )


def launch_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    *,
    window: int | None = None,
) -> None:
    """`kernels.paged_attention_prefill` for checked arguments, into `out`."""
    total_tokens, query_heads, head_dim = query.shape
    _, kv_heads, block_size, _ = k_cache.shape
    sequences = context_lens.shape[0]
    if total_tokens == 0 or sequences == 0:
        return
    refuse_interpreted_bfloat16(query)
    group = query_heads // kv_heads
    tile = prefill_tile(query.element_size(), head_dim, group)
    tiles = total_tokens // tile.constants["BLOCK_Q"] + sequences
    prefill_attention[(kv_heads, tiles)](
        query,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        query_start_loc,
        out,
        scale * LOG2_E,
        sequences,
        block_tables.shape[1] * block_size,
        query.stride(0),
        query.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        scales,
        G=group,
        D=head_dim,
        PAGE=block_size,
        WINDOW=window,
        **tile.constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
