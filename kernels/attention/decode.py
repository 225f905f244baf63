# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Paged decode attention in Triton.

Two launches that agree bit for bit: *serial*, where one program walks all splits of a
(sequence, KV head) pair, and *parallel*, where each split has its program, leaves its part in the
workspace, and the last to arrive combines. `kernels.attention.running_softmax` has the pieces.

With a window, both begin with the split that has its first token, at the tile of that token: what
lies before is not read.
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
from kernels.attention.running_softmax import (
    LOG2_E,
    arrive_last,
    attend_tile,
    combine,
    combined_parts,
    empty_part,
    multiprocessors,
    part_elements,
    parts_of,
    refuse_interpreted_bfloat16,
    store_output,
    store_part,
)
from kernels.attention.workspace import reserved_workspace
from kernels.tiles.launch import decode_is_serial, decode_tile, filling_pairs


@triton.jit(
    do_not_specialize=["max_context", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "context_lens"],
)
def decode_attention(
    query,
    k_cache,
    v_cache,
    block_tables,
    context_lens,
    out,
    partials,
    counters,
    scale_log2,
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
    G_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    SERIAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), or split number `program_id(2)`.

    With a WINDOW, of the last tokens that are attended to, splits are counted from its first one.
    """
    EIGHT_BITS: tl.constexpr = scales is not None
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    # A length beyond the table would read past it and wait for splits that never arrive.
    length = tl.minimum(tl.load(context_lens + sequence), max_context)
    first = split * SPLIT
    if WINDOW is not None:
        seen_from = window_start(length - 1, WINDOW)
        skipped = seen_from // SPLIT * SPLIT
        first += skipped
    if first < tl.maximum(length, 1):
        last = length
        if not SERIAL:
            last = tl.minimum(first + SPLIT, length)
        if WINDOW is not None:
            first = tl.maximum(first, seen_from // BLOCK_N * BLOCK_N)

        group = tl.arange(0, G_PAD)
        dim = tl.arange(0, D_PAD)
        token = tl.arange(0, BLOCK_N)
        head = kv_head * G + group
        in_group = group < G
        in_head = dim < D
        row_mask = in_group[:, None] & in_head[None, :]
        q = tl.load(
            query + sequence * query_stride_row + head[:, None] * query_stride_head + dim[None, :],
            mask=row_mask,
            other=0.0,
        )
        table = block_tables + sequence * table_stride
        k_head = k_cache + kv_head.to(tl.int64) * cache_stride_head
        v_head = v_cache + kv_head.to(tl.int64) * cache_stride_head

        key_scale, value_scale = head_scales(scales, kv_head, tl.num_programs(0))
        if EIGHT_BITS:
            scale_log2 *= key_scale

        total_max, total_sum, total_acc = empty_part(G_PAD, D_PAD)
        run_max, run_sum, run_acc = empty_part(G_PAD, D_PAD)

        next_block = block_of(table, first, last, PAGE)
        for start in tl.range(first, last, BLOCK_N):
            block = next_block
            next_block = block_of(table, start + BLOCK_N, last, PAGE)
            page, slots, mask, in_context = tile_slots(
                table, block, start, last,
                cache_stride_block, cache_stride_slot, token, dim, in_head, PAGE, BLOCK_N,
            )  # fmt: skip
            if WINDOW is not None:
                in_context &= start + token >= seen_from
                mask &= in_context[:, None]
            # Two ifs, since the first is decided when the kernel is compiled.
            if SERIAL:  # noqa: SIM102
                if (start > 0) & (start % SPLIT == 0):
                    total_max, total_sum, total_acc = combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc
                    )
                    run_max, run_sum, run_acc = empty_part(G_PAD, D_PAD)

            k = load_cached(k_head + page, slots, mask, q.dtype)
            v = load_cached(v_head + page, slots, mask, q.dtype)
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, in_context, scale_log2, run_max, run_sum, run_acc
            )

        out_row = out + sequence * out_stride_row
        if SERIAL:
            total_max, total_sum, total_acc = combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc
            )
            store_output(
                out_row, total_sum, total_acc, value_scale, head, dim, row_mask, out_stride_head,
                EIGHT_BITS,
            )  # fmt: skip
        else:
            pair = sequence * tl.num_programs(0) + kv_head
            parts = parts_of(partials, pair, tl.num_programs(2), group, G, D_PAD)
            store_part(parts, split, run_max, run_sum, run_acc, in_group, dim, row_mask, G, D_PAD)
            reach = length
            if WINDOW is not None:
                reach -= skipped
            splits = tl.maximum(tl.cdiv(reach, SPLIT), 1)
            if arrive_last(counters + pair, splits):
                total_max, total_sum, total_acc = combined_parts(
                    parts, splits, in_group, dim, row_mask, G, G_PAD, D_PAD
                )
                store_output(
                    out_row, total_sum, total_acc, value_scale,
                    head, dim, row_mask, out_stride_head, EIGHT_BITS,
                )  # fmt: skip
                tl.store(counters + pair, 0)


def launch_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    *,
    window: int | None = None,
    serial: bool | None = None,
) -> None:
    """`kernels.paged_attention_decode` for checked arguments, into `out`.

    `serial` overrides the choice between the two launches, which agree bit for bit.
    """
    batch, query_heads, head_dim = query.shape
    _, kv_heads, block_size, _ = k_cache.shape
    max_context = block_tables.shape[1] * block_size
    if batch == 0:
        return
    refuse_interpreted_bfloat16(query)
    group = query_heads // kv_heads
    tile = decode_tile(query.element_size(), head_dim, group)
    splits = max(1, triton.cdiv(max_context, tile.constants["SPLIT"]))
    if window is not None:
        splits = min(splits, triton.cdiv(window - 1, tile.constants["SPLIT"]) + 1)
    pairs = batch * kv_heads
    if serial is None:
        serial = decode_is_serial(
            pairs, splits, multiprocessors(query.device), filling_pairs(head_dim)
        )
    if serial:
        partials = counters = out
        splits = 1
    else:
        elements = pairs * group * splits * part_elements(tile.constants["D_PAD"])
        workspace = reserved_workspace(query.device, elements, pairs)
        partials, counters = workspace.partials, workspace.counters
    decode_attention[(kv_heads, batch, splits)](
        query,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        out,
        partials,
        counters,
        scale * LOG2_E,
        max_context,
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
        SERIAL=serial,
        WINDOW=window,
        **tile.constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
