# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Paged decode attention in Triton.

A context is cut into splits of a fixed number of tokens. Each split keeps a running maximum, a
sum and weighted values; splits are combined from the first to the last by `_combine`, whatever
program computed them. So two launches agree bit for bit: *serial*, where one program walks all
splits of a (sequence, KV head) pair, and *parallel*, where each split has its program, leaves its
part in the workspace, and the last to arrive combines.

`tl.fma` is spelled out where a product meets a sum, because the compiler may otherwise contract
the two differently in the two variants.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.backend import interpreting
from kernels.errors import KernelArgumentError
from kernels.launch import decode_is_serial, decode_tile
from kernels.workspace import reserved_workspace

LOG2_E = 1.4426950408889634


@triton.jit
def _combine(max_a, sum_a, acc_a, max_b, sum_b, acc_b):
    """The running softmax of two consecutive ranges of keys. Either may be empty."""
    new_max = tl.maximum(max_a, max_b)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    weight_a = tl.exp2(max_a - base)
    weight_b = tl.exp2(max_b - base)
    new_sum = tl.fma(sum_a, weight_a, sum_b * weight_b)
    new_acc = tl.fma(
        acc_a, tl.broadcast_to(weight_a[:, None], acc_a.shape), acc_b * weight_b[:, None]
    )
    return new_max, new_sum, new_acc


@triton.jit
def _store_output(out, total_sum, total_acc, head, in_group, dim, stride_head, D: tl.constexpr):
    """Normalise and write one group's rows; an empty context, whose sum is zero, gives zeros."""
    is_empty = (total_sum == 0.0)[:, None]
    result = tl.where(is_empty, 0.0, total_acc / tl.where(is_empty, 1.0, total_sum[:, None]))
    mask = in_group[:, None] & (dim < D)[None, :]
    tl.store(
        out + head[:, None] * stride_head + dim[None, :],
        result.to(out.dtype.element_ty),
        mask=mask,
    )


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
    G: tl.constexpr,
    G_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    SERIAL: tl.constexpr,
):
    """One KV head of one sequence: all splits (SERIAL), or split number `program_id(2)`."""
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    # A length beyond the table would read past it and wait for splits that never arrive.
    length = tl.minimum(tl.load(context_lens + sequence), max_context)
    first = split * SPLIT
    if first < tl.maximum(length, 1):
        last = length
        if not SERIAL:
            last = tl.minimum(first + SPLIT, length)

        group = tl.arange(0, G_PAD)
        dim = tl.arange(0, D_PAD)
        token = tl.arange(0, BLOCK_N)
        head = kv_head * G + group
        in_group = group < G
        in_head = dim < D
        q = tl.load(
            query + sequence * query_stride_row + head[:, None] * query_stride_head + dim[None, :],
            mask=in_group[:, None] & in_head[None, :],
            other=0.0,
        )
        table = block_tables + sequence * table_stride
        k_head = k_cache + kv_head.to(tl.int64) * cache_stride_head
        v_head = v_cache + kv_head.to(tl.int64) * cache_stride_head

        total_max = tl.full((G_PAD,), float("-inf"), tl.float32)
        total_sum = tl.zeros((G_PAD,), tl.float32)
        total_acc = tl.zeros((G_PAD, D_PAD), tl.float32)
        run_max = tl.full((G_PAD,), float("-inf"), tl.float32)
        run_sum = tl.zeros((G_PAD,), tl.float32)
        run_acc = tl.zeros((G_PAD, D_PAD), tl.float32)

        # Where a tile lies in one page, its block number is read a tile ahead, off the path
        # from the table to the keys.
        next_block = tl.load(table + first // PAGE, mask=first < last, other=0)
        for start in tl.range(first, last, BLOCK_N):
            in_context = start + token < last
            tile_mask = in_context[:, None] & in_head[None, :]
            if PAGE % BLOCK_N == 0:
                block = next_block.to(tl.int64)
                ahead = start + BLOCK_N
                next_block = tl.load(table + ahead // PAGE, mask=ahead < last, other=0)
                slot = (start % PAGE + token)[:, None] * cache_stride_slot + dim[None, :]
                k_tile = k_head + block * cache_stride_block + slot
                v_tile = v_head + block * cache_stride_block + slot
            else:
                position = start + token
                blocks = tl.load(table + position // PAGE, mask=in_context, other=0).to(tl.int64)
                slot = (blocks * cache_stride_block + (position % PAGE) * cache_stride_slot)[
                    :, None
                ] + dim[None, :]
                k_tile = k_head + slot
                v_tile = v_head + slot
            # Two ifs, since the first is decided when the kernel is compiled.
            if SERIAL:  # noqa: SIM102
                if (start > 0) & (start % SPLIT == 0):
                    total_max, total_sum, total_acc = _combine(
                        total_max, total_sum, total_acc, run_max, run_sum, run_acc
                    )
                    run_max = tl.full((G_PAD,), float("-inf"), tl.float32)
                    run_sum = tl.zeros((G_PAD,), tl.float32)
                    run_acc = tl.zeros((G_PAD, D_PAD), tl.float32)

            k = tl.load(k_tile, mask=tile_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            scores = tl.where(in_context[None, :], scores, float("-inf"))
            new_max = tl.maximum(run_max, tl.max(scores, axis=1))
            fade = tl.exp2(run_max - new_max)
            weights = tl.exp2(scores - new_max[:, None])
            run_sum = tl.fma(run_sum, fade, tl.sum(weights, axis=1))
            # Slots past the context are loaded as zero: a weight of zero times NaN is NaN.
            v = tl.load(v_tile, mask=tile_mask, other=0.0)
            run_acc = tl.dot(
                weights.to(v.dtype), v, run_acc * fade[:, None], input_precision="ieee"
            )
            run_max = new_max

        out_row = out + sequence * out_stride_row
        if SERIAL:
            total_max, total_sum, total_acc = _combine(
                total_max, total_sum, total_acc, run_max, run_sum, run_acc
            )
            _store_output(out_row, total_sum, total_acc, head, in_group, dim, out_stride_head, D)
        else:
            pair = sequence * tl.num_programs(0) + kv_head
            # One record a row and split: D weighted values, then the maximum and the sum.
            RECORD: tl.constexpr = D_PAD + 16
            records = partials + (pair * tl.num_programs(2) * G + group) * RECORD
            record = records + split * (G * RECORD)
            mask = in_group[:, None] & in_head[None, :]
            tl.store(record[:, None] + dim[None, :], run_acc, mask=mask)
            tl.store(record + D_PAD, run_max, mask=in_group)
            tl.store(record + D_PAD + 1, run_sum, mask=in_group)
            # Every thread's part must be written before thread 0 says so, and the atomic makes
            # what others wrote visible to the one that arrives last.
            tl.debug_barrier()
            splits = tl.maximum(tl.cdiv(length, SPLIT), 1)
            arrived = tl.atomic_add(counters + pair, 1, sem="acq_rel")
            if arrived == splits - 1:
                tl.debug_barrier()
                for s in range(0, splits):
                    part = records + s * (G * RECORD)
                    part_acc = tl.load(
                        part[:, None] + dim[None, :], mask=mask, other=0.0, cache_modifier=".cg"
                    )
                    part_max = tl.load(part + D_PAD, mask=in_group, other=0.0, cache_modifier=".cg")
                    part_sum = tl.load(
                        part + D_PAD + 1, mask=in_group, other=0.0, cache_modifier=".cg"
                    )
                    total_max, total_sum, total_acc = _combine(
                        total_max, total_sum, total_acc, part_max, part_sum, part_acc
                    )
                _store_output(
                    out_row, total_sum, total_acc, head, in_group, dim, out_stride_head, D
                )
                tl.store(counters + pair, 0)


def launch_decode(
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
    pairs = batch * kv_heads
    if serial is None:
        serial = decode_is_serial(pairs, splits, multiprocessors(query.device))
    if serial:
        partials = counters = out
        splits = 1
    else:
        record = tile.constants["D_PAD"] + 16
        workspace = reserved_workspace(query.device, pairs * group * splits * record, pairs)
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
        G=group,
        D=head_dim,
        PAGE=block_size,
        SERIAL=serial,
        **tile.constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def refuse_interpreted_bfloat16(query: torch.Tensor) -> None:
    """Triton's interpreter computes bfloat16 on its raw bits, so its results are wrong."""
    if query.dtype == torch.bfloat16 and interpreting():
        raise KernelArgumentError(
            "query must be float32 or float16 under TRITON_INTERPRET=1, whose bfloat16 "
            "arithmetic is wrong, but is torch.bfloat16"
        )


@cache
def multiprocessors(device: torch.device) -> int:
    """The device's number of multiprocessors; 1 under the interpreter."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
