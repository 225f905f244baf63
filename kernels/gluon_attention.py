# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention with the append fused in, for Hopper, in Gluon (Triton's explicit-layout form).

The same computation as `kernels.triton_fused_attention`, split by split, with what plain Triton
cannot say: keys and values come through a ring of `STAGES` tiles that the bulk copy engine
fills, and the ring is full before the projection that makes the query has ended. One warp a
program; `kernels.gluon_softmax` has its arithmetic. Why the early launch is safe stands in
`kernels.triton_fused_attention`; here whole tiles are copied, so the slot being appended to may be
copied too, before or after the write: what stands at or beyond the cached tokens never enters a
result.
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
from kernels.fused_linear_tma import copy_tile
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
    store_total,
)
from kernels.launch import decode_is_serial, padded, ring_stages, ring_tile
from kernels.running_softmax import LOG2_E, PART_HEADER, multiprocessors, part_elements
from kernels.workspace import reserved_workspace

# Triton 3.7 renamed it.
_program_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

_ELEMENTS = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@gluon.jit
def _request(
    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head, start, last, stage,
    KV_HEADS: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    D: gl.constexpr,
):  # fmt: skip
    """Have the copy engine fill a stage with the tile of tokens from `start` on, in page `block`.

    Of a tile that the context ends in, pieces of TAIL tokens are copied, as many as it takes: what
    stands in the rest of the stage is masked like whatever lies beyond the context.
    """
    row = (block * KV_HEADS + kv_head) * PAGE + start % PAGE
    barrier = ready.index(stage)
    PIECES: gl.constexpr = BLOCK_N // TAIL
    # Keys and values of one piece, of 2-byte elements.
    PIECE_BYTES: gl.constexpr = 2 * TAIL * D * 2
    pieces = gl.cdiv(last - start, TAIL)
    if pieces >= PIECES:
        mbarrier.expect(barrier, PIECES * PIECE_BYTES)
        copy_tile(keys, [row, 0], barrier, k_ring.index(stage))
        copy_tile(values, [row, 0], barrier, v_ring.index(stage))
    else:
        k_pieces = k_ring._reinterpret(
            k_ring.dtype, [k_ring.shape[0] * PIECES, TAIL, D], k_ring.layout
        )
        v_pieces = v_ring._reinterpret(
            v_ring.dtype, [v_ring.shape[0] * PIECES, TAIL, D], v_ring.layout
        )
        for count in gl.static_range(1, PIECES):
            mbarrier.expect(barrier, count * PIECE_BYTES, pred=pieces == count)
        for i in gl.static_range(PIECES - 1):
            wanted = i < pieces
            piece = stage * PIECES + i
            copy_tile(tail_keys, [row + i * TAIL, 0], barrier, k_pieces.index(piece), pred=wanted)
            copy_tile(tail_values, [row + i * TAIL, 0], barrier, v_pieces.index(piece), pred=wanted)


@gluon.jit
def _refill(
    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head, start, last, stage,
    KV_HEADS: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    D: gl.constexpr,
):  # fmt: skip
    """`_request` into a stage that all threads have read, if the context reaches `start`."""
    _program_barrier()
    if start < last:
        _request(
            keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
            start, last, stage, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
        )  # fmt: skip


@gluon.jit(
    do_not_specialize=["max_context", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "positions", "is_running"],
)
def ring_attention_append(
    qkv,
    keys,
    values,
    tail_keys,
    tail_values,
    k_cache,
    v_cache,
    block_tables,
    positions,
    is_running,
    out,
    partials,
    counters,
    scale_log2,
    max_context,
    qkv_stride_row,
    table_stride,
    out_stride_row,
    G: gl.constexpr,
    G_PAD: gl.constexpr,
    D: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    TAIL: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    SERIAL: gl.constexpr,
    PDL: gl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), or split number `program_id(2)`."""
    if PDL:
        gdc_launch_dependents()
    kv_head = gl.program_id(0)
    sequence = gl.program_id(1).to(gl.int64)
    split = gl.program_id(2)
    position = gl.load(positions + sequence)
    runs = (gl.load(is_running + sequence).to(gl.int32) > 0) & (position < max_context)
    cached = gl.where(runs, position, 0)
    first = split * SPLIT
    if first < gl.maximum(cached, 1):
        last = cached
        if not SERIAL:
            last = gl.minimum(first + SPLIT, cached)
        table = block_tables + sequence * table_stride
        tiles = gl.cdiv(last - first, BLOCK_N)

        k_ring = gl.allocate_shared_memory(keys.dtype, [STAGES, BLOCK_N, D], keys.layout)
        v_ring = gl.allocate_shared_memory(values.dtype, [STAGES, BLOCK_N, D], values.layout)
        ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(ready.index(stage), count=1)
        fence_async_shared()
        for stage in gl.static_range(STAGES):
            if stage < tiles:
                start = first + stage * BLOCK_N
                _request(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready,
                    gl.load(table + start // PAGE), kv_head, start, last, stage,
                    KV_HEADS, PAGE, BLOCK_N, TAIL, D,
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
        query_place = (kv_head * G + query_group)[None, :] * D + query_dim[:, None]
        new_block = gl.load(table + cached // PAGE, mask=runs, other=0).to(gl.int64)
        if PDL:
            gdc_wait()

        row = qkv + sequence * qkv_stride_row
        q = gl.load(row + query_place, mask=query_mask, other=0.0)
        new_key = gl.load(row + (KV_HEADS * G + kv_head) * D + query_dim)
        new_value = gl.load(row + (KV_HEADS * G + KV_HEADS + kv_head) * D + dim)
        if split == 0:
            slot = ((new_block * KV_HEADS + kv_head) * PAGE + cached % PAGE) * D
            if runs:
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
                _refill(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, block, kv_head,
                    ahead, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip
            run_max, run_sum, run_acc = attend_tile(
                q, k, v, BLOCK_N, scale_log2, run_max, run_sum, run_acc, BLOCK_N, HEADS, False
            )
            if not EARLY:
                _refill(
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
                gl.store(part + D + 2, new_score, mask=in_group)
                # Every thread's part must be written before one says so, and the atomic makes
                # what others wrote visible to the program that arrives last.
                _program_barrier()
                arrived = gl.atomic_add(counters + pair, 1, sem="acq_rel")
                _program_barrier()
                if arrived == splits - 1:
                    store_combined(
                        parts, splits, row + (KV_HEADS * G + KV_HEADS + kv_head) * D,
                        out + sequence * out_stride_row + kv_head * G * D, G, G_PAD, D,
                    )  # fmt: skip
                    gl.store(counters + pair, 0)
        if splits == 1:
            total_max, total_sum, total_acc = combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc
            )
            place = (kv_head * G + group)[None, :] * D + dim[:, None]
            store_total(
                total_max, total_sum, total_acc, new_score, new_value, runs,
                out + sequence * out_stride_row + place, mask,
            )  # fmt: skip


def launch_ring(
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
    """`kernels.fused_attention.fused_attention` for arguments that its `ring_serves` accepts.

    `ring` is how the context is streamed; None: as the committed table says. `serial` overrides
    the choice between the two launches, which agree bit for bit.
    """
    _, kv_heads, block_size, head_dim = k_cache.shape
    batch = positions.shape[0]
    if batch == 0:
        return
    group = out.shape[1] // (kv_heads * head_dim)
    tile = ring or ring_tile(head_dim)
    max_context = block_tables.shape[1] * block_size
    splits = triton.cdiv(max_context, tile.split)
    pairs = batch * kv_heads
    if serial is None:
        serial = decode_is_serial(pairs, splits, multiprocessors(qkv.device))
    if serial:
        partials = counters = out
        splits = 1
    else:
        elements = pairs * group * splits * part_elements(head_dim)
        workspace = reserved_workspace(qkv.device, elements, pairs)
        partials, counters = workspace.partials, workspace.counters
    stages = ring_stages(head_dim, pairs * splits, multiprocessors(qkv.device), tile)
    layout = gl.NVMMASharedLayout.get_default_for(
        [tile.block_n, head_dim], _ELEMENTS[k_cache.dtype]
    )
    keys, values, tail_keys, tail_values = (
        TensorDescriptor.from_tensor(cache.view(-1, head_dim), [tokens, head_dim], layout)
        for tokens in (tile.block_n, tile.tail)
        for cache in (k_cache, v_cache)
    )
    ring_attention_append[(kv_heads, batch, splits)](
        qkv,
        keys,
        values,
        tail_keys,
        tail_values,
        k_cache,
        v_cache,
        block_tables,
        positions,
        is_running,
        out,
        partials,
        counters,
        scale * LOG2_E,
        max_context,
        qkv.stride(0),
        block_tables.stride(0),
        out.stride(0),
        G=group,
        G_PAD=padded(group, 1),
        D=head_dim,
        KV_HEADS=kv_heads,
        PAGE=block_size,
        BLOCK_N=tile.block_n,
        TAIL=tile.tail,
        STAGES=stages,
        SPLIT=tile.split,
        SERIAL=serial,
        **launch_options(pdl),
        num_warps=1,
    )
