# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
"""The linear map of a single row with a weight of e4m3, for Hopper, in Gluon.

Unpacking e4m3 takes longer than reading it, so the weights are left as they are: the copy engine
brings them to shared memory before a program waits for its producers, and tensor cores multiply
eight bits by eight. The row is two of e4m3, `kernels.linear.halves`, which each program makes of
its part of the row by itself: no launch is needed before.

The programs of a cluster share the columns of a tile, and each finishes some of its features.
"""

import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
)
from triton.language import PropagateNan
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hopper.cluster import inbox_bytes, launch_clusters, open_inbox, summed_share
from kernels.hopper.limits import MULTIPROCESSORS
from kernels.hopper.names import copy_tile, program_barrier, reinterpret
from kernels.linear.epilogue import Epilogue
from kernels.linear.folded import LAYER_NORM, FoldedLinear
from kernels.linear.halves import REST
from kernels.linear.hopper.projections import activated, operand_descriptor, product_layout

_FEATURES, _CHUNK, _MOST_PIECE = 64, 256, 4096
_COLUMNS = gl.constexpr(8)
"""The fewest that tensor cores multiply by: the row's halves, and what is of no row."""
_LINE = gl.constexpr(128)
"""Bytes that lie one after another in the memory that tensor cores read."""
_KEEPS_NAN = gl.constexpr(PropagateNan.ALL)


@gluon.constexpr_function
def _piece_layout(warps):
    """A piece of the row as lines [lines, 128]: a thread has 32 neighbours."""
    return gl.BlockedLayout([1, 32], [8, 4], [warps, 1], [1, 0])


@gluon.constexpr_function
def _lines_layout(warps):
    """The same, where it goes to memory [lines, 1, 128]."""
    return gl.BlockedLayout([1, 1, 32], [8, 1, 4], [warps, 1, 1], [2, 1, 0])


@gluon.jit
def _rounded(values):
    """`kernels.linear.halves.rounded`."""
    bits = values.to(gl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    small = (values + 24576.0) - 24576.0
    return gl.where(gl.abs(values) < 0.015625, small, bits.to(gl.float32, bitcast=True))


@gluon.jit
def _larger(one, other):
    """The larger of two, or NaN where one of them is NaN."""
    return gl.maximum(one, other, propagate_nan=_KEEPS_NAN)


@gluon.jit
def _swapped(values, LINES: gl.constexpr):
    """Lines in which each 16 bytes have changed places with the 16 beside them. Moves nothing."""
    by_turns = gl.permute(gl.reshape(values, [LINES, 4, 2, 16]), (0, 1, 3, 2))
    first, second = gl.split(by_turns)
    return gl.reshape(gl.permute(gl.join(second, first), (0, 1, 3, 2)), [LINES, _LINE])


@gluon.jit
def _put(line, values, LINES: gl.constexpr, PLACE: gl.constexpr):
    """Store values [LINES, 128] in one of the eight rows that lie between two lines of a row."""
    layout: gl.constexpr = _lines_layout(gl.num_warps())
    numbers = gl.reshape(values.to(gl.float8e4nv), [LINES, 1, _LINE])
    line.slice(PLACE, 1, dim=1).store(gl.convert_layout(numbers, layout))


@gluon.jit
def _refill(weight_desc, w_chunks, ready, stage, first_n, k):
    """Have the copy engine fill a stage with the chunk from column `k` on."""
    chunk = w_chunks.index(stage)
    mbarrier.expect(ready.index(stage), chunk.shape[0] * chunk.shape[1])
    copy_tile(weight_desc, [first_n, k], ready.index(stage), chunk)


@gluon.jit(do_not_specialize=["inbox_at"])
def row_stream(
    x,
    weight_desc,
    bias,
    y,
    epsilon,
    scales,
    gain,
    inbox_at,
    N: gl.constexpr,
    K: gl.constexpr,
    NORM: gl.constexpr,
    ACTIVATION: gl.constexpr,
    GATED: gl.constexpr,
    ADDED: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    PIECE: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One row of x [rows, K] times BLOCK_N rows of weight [N, K], which have scales [N].

    The row is normed first where NORM says so, and multiplied by the gain [K] of its norm, where
    there is one. The SPLIT_K programs of a cluster, one or two, multiply a part of K each, and
    finish a share of the features. A program makes PIECE columns of the halves at a time.
    """
    PART_K: gl.constexpr = K // SPLIT_K
    OWN_N: gl.constexpr = BLOCK_N // SPLIT_K
    CHUNKS: gl.constexpr = PART_K // BLOCK_K
    PIECES: gl.constexpr = PART_K // PIECE
    LINES: gl.constexpr = PIECE // _LINE
    WARPS: gl.constexpr = gl.num_warps()
    flat: gl.constexpr = _piece_layout(WARPS)
    product: gl.constexpr = product_layout(_COLUMNS, WARPS, 8)
    by_feature: gl.constexpr = gl.SliceLayout(1, product)
    first_n = gl.program_id(0) // SPLIT_K * BLOCK_N
    part = gl.program_id(0) % SPLIT_K
    row = gl.program_id(1)
    if SPLIT_K > 1:
        open_inbox(inbox_at, SPLIT_K, BLOCK_N * _COLUMNS)

    halves = gl.allocate_shared_memory(
        weight_desc.dtype, [CHUNKS, _COLUMNS, BLOCK_K], weight_desc.layout
    )
    w_chunks = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], weight_desc.layout
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        _refill(weight_desc, w_chunks, ready, i, first_n, part * PART_K + i * BLOCK_K)
    feature = gl.arange(0, BLOCK_N, layout=by_feature)
    is_own = feature // OWN_N == part
    n = first_n + feature
    shift = gl.load(bias + n)
    scale = gl.load(scales + n)
    line = gl.arange(0, LINES, layout=gl.SliceLayout(1, flat))
    byte = gl.arange(0, _LINE, layout=gl.SliceLayout(0, flat))
    column = line[:, None] * _LINE + byte[None, :]

    gdc_wait()
    x += row * K
    if ADDED:
        residual = gl.load(y + row * N + n, mask=is_own, other=0.0).to(gl.float32)
    values = ()
    for piece in gl.static_range(PIECES):
        place = part * PART_K + piece * PIECE + column
        own = gl.load(x + place).to(gl.float32)
        if gain is not None:
            own *= gl.load(gain + place)
        values += (own,)
    largest = gl.abs(values[0])
    for piece in gl.static_range(1, PIECES):
        largest = _larger(largest, gl.abs(values[piece]))
    if NORM > 0:
        squares = gl.zeros([LINES, _LINE], gl.float32, layout=flat)
        for piece in gl.static_range(K // PIECE):
            whole = gl.load(x + piece * PIECE + column).to(gl.float32)
            squares += whole * whole
    # A power of two, by which the largest number becomes one from 128 on and below 256; infinite
    # where one is NaN, so that whatever is made of the row is NaN.
    largest = gl.reduce(gl.reduce(largest, 1, _larger), 0, _larger)
    exponent = largest.to(gl.int32, bitcast=True) & 0x7F800000
    power = gl.where(exponent > 0, exponent, 0x3F800000).to(gl.float32, bitcast=True)
    inverse = 1.0 / power
    rows_between: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    places = reinterpret(halves, halves.dtype, [PIECES, LINES, _COLUMNS, _LINE], rows_between)
    for piece in gl.static_range(PIECES):
        scaled = values[piece] * inverse * 128.0
        nearest = _rounded(scaled)
        rest = _rounded((scaled - nearest) / REST)
        _put(places.index(piece), nearest, LINES, 0)
        # Tensor cores look for it where the memory's pattern has it in a second row.
        _put(places.index(piece), _swapped(rest, LINES), LINES, 1)
    fence_async_shared()
    program_barrier()

    total = gl.zeros((BLOCK_N, _COLUMNS), gl.float32, layout=product)
    for i in range(CHUNKS):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
        half_chunk = halves.index(i).permute((1, 0))
        # Tensor cores add with fewer bits than float32 has.
        total += warpgroup_mma(w_chunks.index(stage), half_chunk, total, use_acc=False)
        if i + STAGES < CHUNKS:
            program_barrier()
            k = part * PART_K + (i + STAGES) * BLOCK_K
            _refill(weight_desc, w_chunks, ready, stage, first_n, k)
    # What follows may exchange in the operands' memory.
    program_barrier()
    total *= power / 128.0
    if SPLIT_K > 1:
        both = gl.permute(gl.join(total, total), (0, 2, 1))
        twice = gl.reshape(both, [BLOCK_N, 2 * _COLUMNS])
        total = summed_share(twice, inbox_at, BLOCK_N, 2 * _COLUMNS, SPLIT_K, product)
    half = gl.arange(0, _COLUMNS, layout=gl.SliceLayout(0, product))[None, :]
    # What is in the other columns may be anything.
    parts = gl.where(half == 0, total, gl.where(half == 1, total * REST, 0.0))
    result = gl.sum(parts, axis=1) * scale
    if NORM > 0:
        result *= gl.rsqrt(gl.sum(gl.sum(squares, 1), 0) / K + epsilon)
    result += shift
    if GATED:
        by_turns = gl.permute(gl.reshape(result, [BLOCK_N // 16, 2, 8]), (0, 2, 1))
        gate, other = gl.split(by_turns)
        made = gl.reshape(activated(gate, ACTIVATION) * other, [BLOCK_N // 2])
        beside: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        out = gl.arange(0, BLOCK_N // 2, layout=beside)
        gl.store(
            y + row * (N // 2) + first_n // 2 + out,
            gl.convert_layout(made, beside).to(y.dtype.element_ty),
            mask=out // (OWN_N // 2) == part,
        )
    else:
        result = activated(result, ACTIVATION)
        if ADDED:
            result += residual
        gl.store(y + row * N + n, result.to(y.dtype.element_ty), mask=is_own)


def row_stream_serves(x: torch.Tensor, linear: FoldedLinear) -> bool:
    """Whether `launch_row_stream` has x [rows, K], on a Hopper GPU, times a weight of e4m3."""
    return (
        linear.has_row_scales
        and linear.norm != LAYER_NORM
        and x.dtype != torch.float32
        and linear.in_features % _CHUNK == 0
        and linear.out_features % _FEATURES == 0
    )


def launch_row_stream(
    x: torch.Tensor, linear: FoldedLinear, y: torch.Tensor, epilogue: Epilogue
) -> None:
    """`kernels.linear.vector.launch_rows` where `row_stream_serves`."""
    rows, in_features = x.shape
    tiles = linear.out_features // _FEATURES
    split = 2 if in_features % (2 * _CHUNK) == 0 else 1
    part = in_features // split
    # With fewer on their way three programs share a multiprocessor, where there are so many.
    stages = 3 if split * tiles > 2 * MULTIPROCESSORS else 4
    launch_clusters(
        row_stream,
        (tiles, rows),
        split,
        inbox_bytes(split, _FEATURES * _COLUMNS.value),
        x,
        operand_descriptor(linear.weight, _FEATURES, _CHUNK),
        linear.bias,
        y,
        linear.epsilon,
        linear.scales,
        linear.gain,
        N=linear.out_features,
        K=in_features,
        NORM=linear.norm,
        **epilogue.constants(),
        BLOCK_N=_FEATURES,
        BLOCK_K=_CHUNK,
        PIECE=math.gcd(part, _MOST_PIECE),
        SPLIT_K=split,
        STAGES=min(stages, part // _CHUNK),
        num_warps=4,
        launch_pdl=True,
    )
