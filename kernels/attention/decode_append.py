# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention with the append fused in, in Triton: any CUDA GPU, and the interpreter.

The new token's key and value come from the projection's output, never through the cache: they
are the last thing combined, after all splits of the cached tokens, and the program of the first
split writes them into their slot. So no program reads a slot that this launch writes.

Why early launch is safe. Before `await_producers` a program reads positions, tables and *cached*
tokens only, all of which the step before left, and scales, which stay. Those are complete: a step's
first kernel is launched without the attribute, so it starts after the whole step before has ended,
and every kernel of the step starts after its first (`kernels.dependent_launch`). What this launch
appends is read by no other kernel of the same step, and by the next step only as cached tokens.
Nothing is written before `await_producers`; after it everything earlier in the stream has ended,
the readers of `out` and of the workspace among them, because a program that does any work awaits
and every (sequence, KV head) pair has such a program.
"""

import triton
import triton.language as tl

from kernels.attention.arguments import FusedArguments
from kernels.attention.cache_tile import (
    block_of,
    head_scales,
    load_cached,
    rounded,
    slot_of,
    store_cached,
    tile_slots,
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
from kernels.dependent_launch import await_producers, launch_options, release_consumers
from kernels.tiles.launch import decode_is_serial, fused_attention_tile


@triton.jit
def _take_new_token(q, new_key, new_value, scale_log2, total_max, total_sum, total_acc):
    """The splits' total with the new token, which every running sequence has."""
    score = tl.sum(q.to(tl.float32) * new_key[None, :].to(tl.float32), axis=1) * scale_log2
    acc = tl.broadcast_to(new_value[None, :].to(tl.float32), total_acc.shape)
    return combine(
        total_max, total_sum, total_acc, score, tl.full(score.shape, 1.0, tl.float32), acc
    )


@triton.jit
def load_turned(
    heads, head_norm, norms, dim, mask, cosines, sines, D: tl.constexpr, EPSILON: tl.constexpr
):  # fmt: skip
    """The dimensions `dim`, the last axis, of heads that begin at `heads`, float32: normed where
    there is a `head_norm`, whose weights begin `norms` behind it, and turned."""
    swapped_dim = (dim + D // 2) % D
    values = tl.load(heads + dim, mask=mask, other=0.0).to(tl.float32)
    swapped = tl.load(heads + swapped_dim, mask=mask, other=0.0).to(tl.float32)
    if head_norm is not None:
        square = tl.sum(values * values, axis=len(values.shape) - 1, keep_dims=True) / D
        rstd = tl.rsqrt(square + EPSILON)
        weights = tl.load(head_norm + norms + dim, mask=mask, other=0.0).to(tl.float32)
        others = tl.load(head_norm + norms + swapped_dim, mask=mask, other=0.0).to(tl.float32)
        values = values * rstd * weights
        swapped = swapped * rstd * others
    return values * cosines + swapped * sines


@triton.jit(
    do_not_specialize=["max_context", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "positions", "is_running"],
)
def decode_attention_append(
    qkv,
    k_cache,
    v_cache,
    block_tables,
    positions,
    is_running,
    out,
    partials,
    counters,
    turns,
    head_norm,
    scale_log2,
    max_context,
    qkv_stride_row,
    cache_stride_block,
    cache_stride_head,
    cache_stride_slot,
    table_stride,
    out_stride_row,
    scales,
    G: tl.constexpr,
    G_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    SERIAL: tl.constexpr,
    EPSILON: tl.constexpr,
    PDL: tl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), or split number `program_id(2)`.

    Queries and keys are turned where there are `turns` [positions, D], and normed before where
    there is a `head_norm` [KV_HEADS (G + 1), D]. A cache of eight bits has `scales` [2, KV_HEADS];
    the new token is then attended to as it is stored, too.
    """
    EIGHT_BITS: tl.constexpr = scales is not None
    TYPE: tl.constexpr = qkv.dtype.element_ty
    release_consumers(PDL)
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    position = tl.load(positions + sequence)
    # A position beyond the table has no slot; reading the table there would leave it.
    runs = (tl.load(is_running + sequence).to(tl.int32) > 0) & (position < max_context)
    cached = tl.where(runs, position, 0)
    first = split * SPLIT
    if first < tl.maximum(cached, 1):
        last = cached
        if not SERIAL:
            last = tl.minimum(first + SPLIT, cached)
        group = tl.arange(0, G_PAD)
        dim = tl.arange(0, D_PAD)
        token = tl.arange(0, BLOCK_N)
        head = kv_head * G + group
        in_group = group < G
        in_head = dim < D
        row_mask = in_group[:, None] & in_head[None, :]
        table = block_tables + sequence * table_stride
        k_head = k_cache + kv_head.to(tl.int64) * cache_stride_head
        v_head = v_cache + kv_head.to(tl.int64) * cache_stride_head

        # The first tile is requested before the projection that makes the query has ended.
        page, slots, mask, in_context = tile_slots(
            table, block_of(table, first, last, PAGE), first, last,
            cache_stride_block, cache_stride_slot, token, dim, in_head, PAGE, BLOCK_N,
        )  # fmt: skip
        k = load_cached(k_head + page, slots, mask, TYPE)
        v = load_cached(v_head + page, slots, mask, TYPE)
        key_scale, value_scale = head_scales(scales, kv_head, KV_HEADS)
        if EIGHT_BITS:
            scale_log2 *= key_scale
        new_block = tl.load(table + cached // PAGE, mask=runs, other=0).to(tl.int64)
        if turns is not None:
            pair = turns + cached * D + dim % (D // 2)
            cosines = tl.load(pair, mask=in_head, other=0.0)
            sines = tl.load(pair + D // 2, mask=in_head, other=0.0)
            sines = tl.where(dim < D // 2, -sines, sines)
        await_producers(PDL)

        row = qkv + sequence * qkv_stride_row
        key_place = (KV_HEADS * G + kv_head) * D
        if turns is None:
            q = tl.load(row + head[:, None] * D + dim[None, :], mask=row_mask, other=0.0)
            new_key = tl.load(row + key_place + dim, mask=in_head, other=0.0)
        else:
            place = head[:, None] * D
            q = load_turned(
                row + place, head_norm, place, dim[None, :], row_mask,
                cosines[None, :], sines[None, :], D, EPSILON,
            ).to(qkv.dtype.element_ty)  # fmt: skip
            new_key = load_turned(
                row + key_place, head_norm, key_place, dim, in_head, cosines, sines, D, EPSILON
            ).to(qkv.dtype.element_ty)
        new_value = tl.load(
            row + (KV_HEADS * G + KV_HEADS + kv_head) * D + dim, mask=in_head, other=0.0
        )
        new_key = rounded(new_key, key_scale, EIGHT_BITS)
        new_value = rounded(new_value, value_scale, EIGHT_BITS)
        if (split == 0) & runs:
            slot = slot_of(new_block, cached % PAGE, cache_stride_block, cache_stride_slot) + dim
            store_cached(k_head, slot, new_key, in_head, "")
            store_cached(v_head, slot, new_value, in_head, "")

        total_max, total_sum, total_acc = empty_part(G_PAD, D_PAD)
        run_max, run_sum, run_acc = empty_part(G_PAD, D_PAD)
        if first < last:
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, in_context, scale_log2, run_max, run_sum, run_acc
            )
        # The others' block numbers are read a tile ahead, off the path from the table to the keys.
        next_block = block_of(table, first + BLOCK_N, last, PAGE)
        for start in tl.range(first + BLOCK_N, last, BLOCK_N):
            # Two ifs, since the first is decided when the kernel is compiled.
            if SERIAL:  # noqa: SIM102
                if start % SPLIT == 0:
                    total_max, total_sum, total_acc = combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc
                    )
                    run_max, run_sum, run_acc = empty_part(G_PAD, D_PAD)
            block = next_block
            next_block = block_of(table, start + BLOCK_N, last, PAGE)
            page, slots, mask, in_context = tile_slots(
                table, block, start, last,
                cache_stride_block, cache_stride_slot, token, dim, in_head, PAGE, BLOCK_N,
            )  # fmt: skip
            k = load_cached(k_head + page, slots, mask, TYPE)
            v = load_cached(v_head + page, slots, mask, TYPE)
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, in_context, scale_log2, run_max, run_sum, run_acc
            )

        splits = 1
        if not SERIAL:
            splits = tl.maximum(tl.cdiv(cached, SPLIT), 1)
        is_last = True
        pair = sequence * KV_HEADS + kv_head
        parts = parts_of(partials, pair, tl.num_programs(2), group, G, D_PAD)
        if splits > 1:
            store_part(parts, split, run_max, run_sum, run_acc, in_group, dim, row_mask, G, D_PAD)
            is_last = arrive_last(counters + pair, splits)
        if is_last:
            if splits > 1:
                total_max, total_sum, total_acc = combined_parts(
                    parts, splits, in_group, dim, row_mask, G, G_PAD, D_PAD
                )
                tl.store(counters + pair, 0)
            else:
                total_max, total_sum, total_acc = combine(
                    total_max, total_sum, total_acc, run_max, run_sum, run_acc
                )
            total_max, total_sum, total_acc = _take_new_token(
                q, new_key, new_value, scale_log2, total_max, total_sum, total_acc
            )
            # Rows that do not run get zeros, whatever their queries hold.
            total_sum = tl.where(runs, total_sum, 0.0)
            store_output(
                out + sequence * out_stride_row, total_sum, total_acc, value_scale,
                head, dim, row_mask, D, EIGHT_BITS,
            )  # fmt: skip


def launch_fused(arguments: FusedArguments, pdl: bool, *, serial: bool | None = None) -> None:
    """`kernels.attention.fused.fused_attention` for checked arguments.

    `serial` overrides the choice between the two launches, which agree bit for bit.
    """
    qkv, k_cache, v_cache, block_tables, positions, is_running, out = arguments[:7]
    scale, rotation, scales = arguments[7:]
    _, kv_heads, block_size, head_dim = k_cache.shape
    batch = positions.shape[0]
    if batch == 0:
        return
    refuse_interpreted_bfloat16(qkv, "qkv")
    group = out.shape[1] // (kv_heads * head_dim)
    tile = fused_attention_tile(qkv.element_size(), head_dim, group)
    max_context = block_tables.shape[1] * block_size
    splits = triton.cdiv(max_context, tile.constants["SPLIT"])
    pairs = batch * kv_heads
    if serial is None:
        serial = decode_is_serial(pairs, splits, multiprocessors(qkv.device))
    if serial:
        partials = counters = out
        splits = 1
    else:
        elements = pairs * group * splits * part_elements(tile.constants["D_PAD"])
        workspace = reserved_workspace(qkv.device, elements, pairs)
        partials, counters = workspace.partials, workspace.counters
    decode_attention_append[(kv_heads, batch, splits)](
        qkv,
        k_cache,
        v_cache,
        block_tables,
        positions,
        is_running,
        out,
        partials,
        counters,
        None if rotation is None else rotation.table,
        None if rotation is None else rotation.norm,
        scale * LOG2_E,
        max_context,
        qkv.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_tables.stride(0),
        out.stride(0),
        scales,
        G=group,
        D=head_dim,
        KV_HEADS=kv_heads,
        PAGE=block_size,
        SERIAL=serial,
        EPSILON=0.0 if rotation is None else rotation.epsilon,
        **tile.constants,
        **launch_options(pdl),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
