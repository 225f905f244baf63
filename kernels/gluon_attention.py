# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Decode attention with the append fused in, for Hopper, in Gluon (Triton's explicit-layout form).

The same computation as `kernels.triton_fused_attention`, split by split, with what plain Triton
cannot say: keys and values come through a ring of `STAGES` tiles that the bulk copy engine
fills, and the ring is full before the projection that makes the query has ended. One warp a
program; the products run on tensor cores with the query group padded to 16 rows. Why the early
launch is safe stands in `kernels.triton_fused_attention`; here whole tiles are copied, so the slot
being appended to may be copied too, before or after the write: what stands at or beyond the
cached tokens never enters a result.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.dependent_launch import launch_options
from kernels.fused_configs import RingTile
from kernels.fused_linear_tma import copy_tile
from kernels.launch import decode_is_serial, padded, ring_stages, ring_tile
from kernels.running_softmax import LOG2_E, PART_HEADER, multiprocessors, part_elements
from kernels.workspace import reserved_workspace

# Triton 3.7 renamed it.
_program_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

_ELEMENTS = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@gluon.jit
def _combine(max_a, sum_a, acc_a, max_b, sum_b, acc_b, ROWS: gl.constexpr):
    """The running softmax of two consecutive ranges of keys. Either may be empty."""
    new_max = gl.maximum(max_a, max_b)
    base = gl.where(new_max == float("-inf"), 0.0, new_max)
    weight_a = gl.exp2(max_a - base)
    weight_b = gl.exp2(max_b - base)
    new_sum = gl.fma(sum_a, weight_a, sum_b * weight_b)
    fade_a = gl.convert_layout(weight_a, ROWS)[:, None]
    fade_b = gl.convert_layout(weight_b, ROWS)[:, None]
    new_acc = gl.fma(acc_a, fade_a + gl.zeros_like(acc_a), acc_b * fade_b)
    return new_max, new_sum, new_acc


@gluon.jit
def _store_total(
    total_max, total_sum, total_acc, new_score, new_value, runs, place, mask, ROWS: gl.constexpr
):
    """Take the new token, which every running sequence has, normalise, and write."""
    one = gl.full(new_score.shape, 1.0, gl.float32, layout=new_score.type.layout)
    new_acc = new_value[None, :].to(gl.float32) + gl.zeros_like(total_acc)
    total_max, total_sum, total_acc = _combine(
        total_max, total_sum, total_acc, new_score, one, new_acc, ROWS
    )
    # Rows that do not run get zeros, whatever their queries hold.
    result = gl.where(runs, total_acc / total_sum[:, None], 0.0)
    gl.store(place, result.to(place.dtype.element_ty), mask=mask)


@gluon.jit
def _load_part(part, dim, in_group, D: gl.constexpr):
    """Maximum, sum and weighted values of one split; of no keys where masked."""
    acc = gl.load(
        part[:, None] + dim[None, :], mask=in_group[:, None] & (dim < D)[None, :], other=0.0,
        cache_modifier=".cg",
    )  # fmt: skip
    run_max = gl.load(part + D, mask=in_group, other=float("-inf"), cache_modifier=".cg")
    run_sum = gl.load(part + D + 1, mask=in_group, other=0.0, cache_modifier=".cg")
    return run_max, run_sum, acc


@gluon.jit
def _store_combined(
    parts, splits, new_value, out,
    G: gl.constexpr, G_PAD: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Combine a pair's parts from the first to the last and write its rows of `out`.

    In a layout without the padding that tensor cores take, so that the parts of several splits fit
    into registers: they are requested together, and one way from memory is waited for, not one
    each.
    """
    RECORD: gl.constexpr = D + PART_HEADER
    AT_ONCE: gl.constexpr = 8 if G_PAD * D <= 128 else 4 if G_PAD * D <= 512 else 1
    FLAT: gl.constexpr = gl.BlockedLayout([1, D // 32], [1, 32], [1, 1], [1, 0])
    ROWS: gl.constexpr = gl.SliceLayout(1, FLAT)
    group = gl.arange(0, G_PAD, layout=ROWS)
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    in_group = group < G
    first = parts + group * RECORD
    new_score = gl.load(first + D + 2, mask=in_group, other=0.0, cache_modifier=".cg")
    value = gl.load(new_value + dim)
    total_max = gl.full([G_PAD], float("-inf"), gl.float32, layout=ROWS)
    total_sum = gl.zeros([G_PAD], gl.float32, layout=ROWS)
    total_acc = gl.zeros([G_PAD, D], gl.float32, layout=FLAT)
    for s in range(0, splits, AT_ONCE):
        waiting = ()
        for i in gl.static_range(AT_ONCE):
            is_there = s + i < splits
            waiting += _load_part(first + (s + i) * (G * RECORD), dim, in_group & is_there, D)
        for i in gl.static_range(AT_ONCE):
            total_max, total_sum, total_acc = _combine(
                total_max, total_sum, total_acc,
                waiting[3 * i], waiting[3 * i + 1], waiting[3 * i + 2], ROWS,
            )  # fmt: skip
    _store_total(
        total_max, total_sum, total_acc, new_score, value, True,
        out + group[:, None] * D + dim[None, :], in_group[:, None] & (dim < D)[None, :], ROWS,
    )  # fmt: skip


@gluon.jit
def _request(
    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, table, kv_head, start, last, stage,
    KV_HEADS: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    D: gl.constexpr,
):  # fmt: skip
    """Have the copy engine fill a stage with the tile of tokens from `start` on.

    Of a tile that the context ends in, pieces of TAIL tokens are copied, as many as it takes: what
    stands in the rest of the stage is masked like whatever lies beyond the context.
    """
    row = (gl.load(table + start // PAGE) * KV_HEADS + kv_head) * PAGE + start % PAGE
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
                _request(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, table, kv_head,
                    first + stage * BLOCK_N, last, stage, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip

        MMA: gl.constexpr = gl.NVMMADistributedLayout(
            version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]
        )
        LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MMA, k_width=2)
        RIGHT: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=MMA, k_width=2)
        ROWS: gl.constexpr = gl.SliceLayout(1, MMA)
        COLUMNS: gl.constexpr = gl.SliceLayout(0, MMA)
        group = gl.arange(0, 16, layout=ROWS)
        dim = gl.arange(0, D, layout=COLUMNS)
        token = gl.arange(0, BLOCK_N, layout=COLUMNS)
        value_token = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, RIGHT))
        in_group = group < G
        row_mask = in_group[:, None] & (dim < D)[None, :]
        head = kv_head * G + group
        new_block = gl.load(table + cached // PAGE, mask=runs, other=0).to(gl.int64)
        if PDL:
            gdc_wait()

        row = qkv + sequence * qkv_stride_row
        query = gl.load(row + head[:, None] * D + dim[None, :], mask=row_mask, other=0.0)
        new_key = gl.load(row + (KV_HEADS * G + kv_head) * D + dim)
        new_value = gl.load(row + (KV_HEADS * G + KV_HEADS + kv_head) * D + dim)
        if split == 0:
            slot = ((new_block * KV_HEADS + kv_head) * PAGE + cached % PAGE) * D
            if runs:
                gl.store(k_cache + slot + dim, new_key)
                gl.store(v_cache + slot + dim, new_value)
        new_score = gl.sum(query.to(gl.float32) * new_key[None, :].to(gl.float32), 1) * scale_log2
        q = gl.convert_layout(query, LEFT)

        total_max = gl.full([16], float("-inf"), gl.float32, layout=ROWS)
        total_sum = gl.zeros([16], gl.float32, layout=ROWS)
        total_acc = gl.zeros([16, D], gl.float32, layout=MMA)
        run_max = total_max
        run_sum = total_sum
        run_acc = total_acc
        for tile in range(tiles):
            start = first + tile * BLOCK_N
            here = tile % STAGES
            if SERIAL:  # noqa: SIM102
                if (tile > 0) & (start % SPLIT == 0):
                    total_max, total_sum, total_acc = _combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc, ROWS
                    )
                    run_max = gl.full([16], float("-inf"), gl.float32, layout=ROWS)
                    run_sum = gl.zeros([16], gl.float32, layout=ROWS)
                    run_acc = gl.zeros([16, D], gl.float32, layout=MMA)
            mbarrier.wait(ready.index(here), (tile // STAGES) & 1)
            k = k_ring.index(here).permute((1, 0)).load(RIGHT)
            v = v_ring.index(here).load(RIGHT)
            scores = mma_v2(q, k, gl.zeros([16, BLOCK_N], gl.float32, layout=MMA)) * scale_log2
            scores = gl.where((start + token < last)[None, :], scores, float("-inf"))
            new_max = gl.maximum(run_max, gl.max(scores, 1))
            fade = gl.exp2(run_max - new_max)
            weights = gl.exp2(scores - new_max[:, None])
            run_sum = gl.fma(run_sum, fade, gl.sum(weights, 1))
            if start + BLOCK_N > last:
                # A weight of zero times NaN is NaN.
                v = gl.where((start + value_token < last)[:, None], v, gl.zeros_like(v))
            run_acc = mma_v2(
                gl.convert_layout(weights.to(v.dtype), LEFT), v, run_acc * fade[:, None]
            )
            run_max = new_max
            _program_barrier()
            if tile + STAGES < tiles:
                _request(
                    keys, values, tail_keys, tail_values, k_ring, v_ring, ready, table, kv_head,
                    start + STAGES * BLOCK_N, last, here, KV_HEADS, PAGE, BLOCK_N, TAIL, D,
                )  # fmt: skip

        splits = 1
        if not SERIAL:
            splits = gl.maximum(gl.cdiv(cached, SPLIT), 1)
            if splits > 1:
                RECORD: gl.constexpr = D + PART_HEADER
                pair = sequence * KV_HEADS + kv_head
                parts = partials + pair * gl.num_programs(2) * (G * RECORD)
                part = parts + (split * G + group) * RECORD
                gl.store(part[:, None] + dim[None, :], run_acc, mask=row_mask)
                gl.store(part + D, run_max, mask=in_group)
                gl.store(part + D + 1, run_sum, mask=in_group)
                gl.store(part + D + 2, new_score, mask=in_group)
                # Every thread's part must be written before one says so, and the atomic makes
                # what others wrote visible to the program that arrives last.
                _program_barrier()
                arrived = gl.atomic_add(counters + pair, 1, sem="acq_rel")
                _program_barrier()
                if arrived == splits - 1:
                    _store_combined(
                        parts, splits, row + (KV_HEADS * G + KV_HEADS + kv_head) * D,
                        out + sequence * out_stride_row + kv_head * G * D, G, G_PAD, D,
                    )  # fmt: skip
                    gl.store(counters + pair, 0)
        if splits == 1:
            total_max, total_sum, total_acc = _combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc, ROWS
            )
            _store_total(
                total_max, total_sum, total_acc, new_score, new_value, runs,
                out + sequence * out_stride_row + head[:, None] * D + dim[None, :], row_mask, ROWS,
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
