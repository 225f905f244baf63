# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
"""Decode attention for Hopper, in Gluon (Triton's explicit-layout form), with the append fused in.

Or without it, for tokens that are all in the cache. The same computation as
`kernels.triton_fused_attention`, split by split, with what plain Triton cannot say: keys and values
come through a ring of `STAGES` tiles that the bulk copy engine fills, and the ring is full before
the projection that makes the query has ended. One warp a program; `kernels.gluon_softmax` has its
arithmetic. Why the early launch is safe stands in `kernels.triton_fused_attention`; here whole
tiles are copied, so the slot being appended to may be copied too, before or after the write: what
stands at or beyond the cached tokens never enters a result.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.dependent_launch import launch_options
from kernels.fused_configs import RingTile
from kernels.gluon_names import program_barrier
from kernels.gluon_ring import refill, request
from kernels.gluon_softmax import (
    BY_HEAD,
    BY_QUERY_DIM,
    BY_QUERY_HEAD,
    BY_ROW,
    LEFT,
    attend_tile,
    combine,
    empty_part,
    store_combined,
    store_output,
    take_new_token,
)
from kernels.launch import (
    decode_is_serial,
    filling_pairs,
    padded,
    ring_spare,
    ring_stages,
    ring_tile,
)
from kernels.running_softmax import LOG2_E, PART_HEADER, multiprocessors, part_elements
from kernels.workspace import reserved_workspace

_ELEMENTS = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@gluon.jit(
    do_not_specialize=["max_context", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "lengths", "is_running"],
)
def ring_attention(
    query,
    keys,
    values,
    tail_keys,
    tail_values,
    k_cache,
    v_cache,
    block_tables,
    lengths,
    is_running,
    out,
    partials,
    counters,
    scale_log2,
    max_context,
    query_stride_row,
    query_stride_head,
    table_stride,
    out_stride_row,
    out_stride_head,
    G: gl.constexpr,
    G_PAD: gl.constexpr,
    D: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    TAIL: gl.constexpr,
    STAGES: gl.constexpr,
    SPARE: gl.constexpr,
    SPLIT: gl.constexpr,
    SERIAL: gl.constexpr,
    APPEND: gl.constexpr,
    PDL: gl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), or split number `program_id(2)`.

    With APPEND the new token's key and value stand behind its queries, and `lengths` counts the
    tokens before it; without, all tokens are in the cache and are counted.
    """
    if PDL:
        gdc_launch_dependents()
    kv_head = gl.program_id(0)
    sequence = gl.program_id(1).to(gl.int64)
    split = gl.program_id(2)
    length = gl.load(lengths + sequence)
    if APPEND:
        runs = (gl.load(is_running + sequence).to(gl.int32) > 0) & (length < max_context)
        cached = gl.where(runs, length, 0)
    else:
        # A length beyond the table would read past it and wait for splits that never arrive.
        cached = gl.minimum(length, max_context)
        runs = cached > 0
    first = split * SPLIT
    # Pages of the first tiles, whether the context reaches them or not: read with its length, not
    # after it.
    table = block_tables + sequence * table_stride
    blocks = ()
    for stage in gl.static_range(STAGES):
        start = first + stage * BLOCK_N
        blocks += (gl.load(table + start // PAGE, mask=start < max_context, other=0),)
    if first < gl.maximum(cached, 1):
        last = cached
        if not SERIAL:
            last = gl.minimum(first + SPLIT, cached)
        tiles = gl.cdiv(last - first, BLOCK_N)

        k_ring = gl.allocate_shared_memory(keys.dtype, [STAGES, BLOCK_N, D], keys.layout)
        v_ring = gl.allocate_shared_memory(values.dtype, [STAGES, BLOCK_N, D], values.layout)
        # Memory that is to be left unused counts as barriers too many.
        barriers: gl.constexpr = STAGES + SPARE // 8
        ready = gl.allocate_shared_memory(gl.int64, [barriers, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(ready.index(stage), count=1)
        fence_async_shared()
        for stage in gl.static_range(STAGES):
            if stage < tiles:
                request(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, blocks[stage],
                    kv_head, first + stage * BLOCK_N, last, stage, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip

        HEADS: gl.constexpr = G_PAD if G_PAD > 8 else 8
        # Once a stage is in registers it can be filled again, before its tile is worked on. Those
        # of wide heads do not all fit beside the sums.
        EARLY: gl.constexpr = D <= 64
        group = gl.arange(0, HEADS, layout=BY_HEAD)
        dim = gl.arange(0, D, layout=BY_ROW)
        in_group = group < G
        mask = in_group[None, :] & (dim < D)[:, None]
        query_group = gl.arange(0, HEADS, layout=BY_QUERY_HEAD)
        query_dim = gl.arange(0, D, layout=BY_QUERY_DIM)
        query_mask = (query_group < G)[None, :] & (query_dim < D)[:, None]
        query_place = (kv_head * G + query_group)[None, :] * query_stride_head + query_dim[:, None]
        if APPEND:
            new_block = gl.load(table + cached // PAGE, mask=runs, other=0).to(gl.int64)
        if PDL:
            gdc_wait()

        row = query + sequence * query_stride_row
        q = gl.load(row + query_place, mask=query_mask, other=0.0)
        key_row = row + (KV_HEADS * G + kv_head) * query_stride_head
        value_row = key_row + KV_HEADS * query_stride_head
        if APPEND:
            new_key = gl.load(key_row + query_dim)
            new_value = gl.load(value_row + dim)
            if (split == 0) & runs:
                slot = ((new_block * KV_HEADS + kv_head) * PAGE + cached % PAGE) * D
                gl.store(k_cache + slot + query_dim, new_key)
                gl.store(v_cache + slot + dim, new_value)
            products = q.to(gl.float32) * new_key[:, None].to(gl.float32)
            new_score = gl.convert_layout(gl.sum(products, 0), BY_HEAD) * scale_log2

        total_max, total_sum, total_acc = empty_part(HEADS, D)
        run_max, run_sum, run_acc = empty_part(HEADS, D)
        whole_tiles = (last - first) // BLOCK_N
        for tile in range(whole_tiles):
            start = first + tile * BLOCK_N
            here = tile % STAGES
            # The tile that will stand in this stage next: its page is read before the wait.
            ahead = start + STAGES * BLOCK_N
            block = gl.load(table + ahead // PAGE, mask=ahead < last, other=0)
            mbarrier.wait(ready.index(here), (tile // STAGES) & 1)
            k = k_ring.index(here).load(LEFT)
            v = v_ring.index(here).permute((1, 0)).load(LEFT)
            if EARLY:
                refill(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
                    ahead, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, BLOCK_N, scale_log2, run_max, run_sum, run_acc, BLOCK_N, HEADS, False
            )
            if not EARLY:
                refill(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
                    ahead, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip
            if SERIAL:  # noqa: SIM102
                if (start + BLOCK_N) % SPLIT == 0:
                    total_max, total_sum, total_acc = combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc
                    )
                    run_max, run_sum, run_acc = empty_part(HEADS, D)
        # Apart from the others, so that only the last tile pays for being cut short.
        if whole_tiles < tiles:
            here = whole_tiles % STAGES
            mbarrier.wait(ready.index(here), (whole_tiles // STAGES) & 1)
            k = k_ring.index(here).load(LEFT)
            v = v_ring.index(here).permute((1, 0)).load(LEFT)
            tokens = last - first - whole_tiles * BLOCK_N
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, tokens, scale_log2, run_max, run_sum, run_acc, BLOCK_N, HEADS, True
            )

        splits = 1
        if not SERIAL:
            splits = gl.maximum(gl.cdiv(cached, SPLIT), 1)
            if splits > 1:
                RECORD: gl.constexpr = D + PART_HEADER
                pair = sequence * KV_HEADS + kv_head
                parts = partials + pair * gl.num_programs(2) * (G * RECORD)
                part = parts + (split * G + group) * RECORD
                gl.store(part[None, :] + dim[:, None], run_acc, mask=mask)
                gl.store(part + D, run_max, mask=in_group)
                gl.store(part + D + 1, run_sum, mask=in_group)
                if APPEND:
                    gl.store(part + D + 2, new_score, mask=in_group)
                # Every thread's part must be written before one says so, and the atomic makes
                # what others wrote visible to the program that arrives last.
                program_barrier()
                arrived = gl.atomic_add(counters + pair, 1, sem="acq_rel")
                program_barrier()
                if arrived == splits - 1:
                    store_combined(
                        parts, splits, value_row,
                        out + sequence * out_stride_row + kv_head * G * out_stride_head,
                        out_stride_head, G, G_PAD, D, APPEND,
                    )  # fmt: skip
                    gl.store(counters + pair, 0)
        if splits == 1:
            total_max, total_sum, total_acc = combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc
            )
            if APPEND:
                total_max, total_sum, total_acc = take_new_token(
                    total_max, total_sum, total_acc, new_score, new_value
                )
            place = (kv_head * G + group)[None, :] * out_stride_head + dim[:, None]
            store_output(total_sum, total_acc, runs, out + sequence * out_stride_row + place, mask)


def launch_ring_append(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    positions: torch.Tensor,
    is_running: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    pdl: bool,
    *,
    serial: bool | None = None,
    ring: RingTile | None = None,
) -> None:
    """`kernels.fused_attention.fused_attention` for caches that `ring_serves` accepts.

    `ring` is how the context is streamed; None: as the committed table says. `serial` overrides
    the choice between the two launches, which agree bit for bit.
    """
    heads, out_heads = (rows.unflatten(1, (-1, k_cache.shape[3])) for rows in (qkv, out))
    _launch(
        heads, k_cache, v_cache, block_tables, positions, is_running, out_heads, scale, pdl, serial,
        ring,
    )  # fmt: skip


def launch_ring_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    *,
    serial: bool | None = None,
) -> None:
    """`kernels.paged_attention_decode` for caches that `ring_serves` accepts; `serial` as above."""
    _launch(
        query, k_cache, v_cache, block_tables, context_lens, None, out, scale, False, serial, None
    )


def _launch(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    lengths: torch.Tensor,
    is_running: torch.Tensor | None,
    out: torch.Tensor,
    scale: float,
    pdl: bool,
    serial: bool | None,
    ring: RingTile | None,
) -> None:
    """Heads [B, H, D] of queries, with `is_running` also of the new keys and values behind them."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    batch = lengths.shape[0]
    if batch == 0:
        return
    group = out.shape[1] // kv_heads
    tile = ring or ring_tile(head_dim)
    max_context = block_tables.shape[1] * block_size
    splits = max(1, triton.cdiv(max_context, tile.split))
    pairs = batch * kv_heads
    if serial is None:
        serial = decode_is_serial(
            pairs, splits, multiprocessors(query.device), filling_pairs(head_dim)
        )
    if serial:
        partials = counters = out
        splits = 1
    else:
        elements = pairs * group * splits * part_elements(head_dim)
        workspace = reserved_workspace(query.device, elements, pairs)
        partials, counters = workspace.partials, workspace.counters
    stages, spare = tile.alone, 0
    if is_running is not None:
        stages = ring_stages(head_dim, pairs * splits, multiprocessors(query.device), tile)
        if serial:
            spare = ring_spare(head_dim, stages, pairs, multiprocessors(query.device), tile)
    layout = gl.NVMMASharedLayout.get_default_for(
        [tile.block_n, head_dim], _ELEMENTS[k_cache.dtype]
    )
    keys, values, tail_keys, tail_values = (
        TensorDescriptor.from_tensor(cache.view(-1, head_dim), [tokens, head_dim], layout)
        for tokens in (tile.block_n, tile.tail)
        for cache in (k_cache, v_cache)
    )
    ring_attention[(kv_heads, batch, splits)](
        query,
        keys,
        values,
        tail_keys,
        tail_values,
        k_cache,
        v_cache,
        block_tables,
        lengths,
        lengths if is_running is None else is_running,
        out,
        partials,
        counters,
        scale * LOG2_E,
        max_context,
        query.stride(0),
        query.stride(1),
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        G=group,
        G_PAD=padded(group, 1),
        D=head_dim,
        KV_HEADS=kv_heads,
        PAGE=block_size,
        BLOCK_N=tile.block_n,
        TAIL=tile.tail,
        STAGES=stages,
        SPARE=spare,
        SPLIT=tile.split,
        SERIAL=serial,
        APPEND=is_running is not None,
        **launch_options(pdl),
        num_warps=1,
    )
