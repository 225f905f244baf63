# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
"""The greedy LM head on Hopper, in Gluon: weights and rows stream through shared memory.

The same as `kernels.linear.head.head_tiles`, which is its reference. A program's tile of tokens is
wide, so that the vocabulary is about one tile for each multiprocessor: x is read from L2 once for
all tokens of a tile, and all programs end together. The tile is made of parts, each the width of
one chain of matrix instructions.
"""

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hopper.names import copy_tile, program_barrier
from kernels.linear.folded import FoldedLinear
from kernels.linear.hopper.projections import (
    combine_statistics,
    load_statistics,
    operand_descriptor,
    statistics_layout,
)
from kernels.tiles.launch import padded
from kernels.tiles.tile import HEAD_PART, LinearTile


@gluon.jit
def _larger(a, b):
    """NaN if either is: a logit that is not a number must not be lost."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def _request_weights(
    weight_desc, w_chunks, ready, chunk, first_token, CHUNK_BYTES: gl.constexpr,
    PARTS: gl.constexpr, PART: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Expect chunk number `chunk` of K in its stage, and have the copy engine bring its weights."""
    stage = chunk % STAGES
    mbarrier.expect(ready.index(stage), CHUNK_BYTES)
    for part in gl.static_range(PARTS):
        copy_tile(
            weight_desc,
            [first_token + part * PART, chunk * BLOCK_K],
            ready.index(stage),
            w_chunks.index(stage * PARTS + part),
        )


@gluon.jit
def _request_rows(
    x_desc, x_chunks, ready, chunk, first_row, BLOCK_K: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Have the copy engine bring the rows of the same chunk."""
    stage = chunk % STAGES
    copy_tile(x_desc, [first_row, chunk * BLOCK_K], ready.index(stage), x_chunks.index(stage))


@gluon.jit
def _awaited(products, pending: gl.constexpr, PARTS: gl.constexpr):
    """The products of all parts, once no more than `pending` of those asked for are in the making.

    A single product is passed as it is, not as a tuple.
    """
    done = warpgroup_mma_wait(pending, deps=products)
    if PARTS == 1:
        done = (done,)
    return done


@gluon.jit(do_not_specialize=["rows", "vocab_size"])
def head_stream(
    x_desc,
    weight_desc,
    bias,
    column_sums,
    x_stats,
    tile_max,
    tile_token,
    rows,
    vocab_size,
    epsilon,
    K: gl.constexpr,
    NORM: gl.constexpr,
    TILES: gl.constexpr,
    X_TILES: gl.constexpr,
    X_TILES_PAD: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    PART: gl.constexpr,
    STAGES: gl.constexpr,
):
    """BLOCK_M rows against BLOCK_N tokens, PART at a time."""
    CHUNKS: gl.constexpr = K // BLOCK_K
    PARTS: gl.constexpr = BLOCK_N // PART
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, PART, 16]
    )
    by_row: gl.constexpr = gl.SliceLayout(1, mma)
    by_token: gl.constexpr = gl.SliceLayout(0, mma)
    # A value for each token in few registers; by_token has them in 32 of every thread.
    spread: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    CHUNK_BYTES: gl.constexpr = (
        (BLOCK_M + BLOCK_N) * BLOCK_K * (x_desc.dtype.primitive_bitwidth // 8)
    )
    first_row = gl.program_id(0) * BLOCK_M
    tile = gl.program_id(1)
    first_token = tile * BLOCK_N

    x_chunks = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    w_chunks = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES * PARTS, PART, BLOCK_K], weight_desc.layout
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        _request_weights(
            weight_desc, w_chunks, ready, i, first_token, CHUNK_BYTES, PARTS, PART, BLOCK_K, STAGES
        )
    shifts = ()
    column_sum = ()
    logits = ()
    for part in gl.static_range(PARTS):
        n = first_token + part * PART + gl.arange(0, PART, layout=spread)
        # No padding is the best token.
        shifts += (gl.where(n < vocab_size, gl.load(bias + n), float("-inf")),)
        if NORM == 1:
            column_sum += (gl.load(column_sums + n),)
        logits += (warpgroup_mma_init(gl.zeros((BLOCK_M, PART), gl.float32, layout=mma)),)

    gdc_wait()
    for i in gl.static_range(STAGES):
        _request_rows(x_desc, x_chunks, ready, i, first_row, BLOCK_K, STAGES)
    # While the copies are on their way.
    flat: gl.constexpr = statistics_layout(X_TILES_PAD, gl.num_warps())
    stats_row = first_row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, flat))
    stats_tile = gl.arange(0, X_TILES_PAD, layout=gl.SliceLayout(0, flat))
    sums, squares = load_statistics(x_stats, stats_row, stats_tile, rows, X_TILES)
    mean, rstd = combine_statistics(sums, squares, stats_tile, epsilon, K, X_TILES, NORM, by_row)

    # Not unrolled: the addresses of all chunks at once would take the registers of the logits.
    for chunk in range(CHUNKS):
        stage = chunk % STAGES
        mbarrier.wait(ready.index(stage), (chunk // STAGES) & 1)
        products = ()
        for part in gl.static_range(PARTS):
            products += (
                warpgroup_mma(
                    x_chunks.index(stage),
                    w_chunks.index(stage * PARTS + part).permute((1, 0)),
                    logits[part],
                    is_async=True,
                ),
            )
        logits = _awaited(products, PARTS, PARTS)
        after = chunk - 1 + STAGES
        if (chunk > 0) & (after < CHUNKS):
            # All warps are done with the chunk before this one: its stage is free.
            program_barrier()
            _request_weights(
                weight_desc, w_chunks, ready, after, first_token, CHUNK_BYTES,
                PARTS, PART, BLOCK_K, STAGES,
            )  # fmt: skip
            _request_rows(x_desc, x_chunks, ready, after, first_row, BLOCK_K, STAGES)
    logits = _awaited(logits, 0, PARTS)

    for part in gl.static_range(PARTS):
        # One of them after the other: there are registers for one beside the logits.
        values = logits[part]
        if NORM == 1:
            values -= mean[:, None] * gl.convert_layout(column_sum[part], by_token)[None]
        values = rstd[:, None] * values + gl.convert_layout(shifts[part], by_token)[None]
        largest = gl.reduce(values, 1, _larger)
        n = first_token + part * PART + gl.arange(0, PART, layout=by_token)
        # The lowest id among equals, of this part and of those before it.
        lowest = gl.min(gl.where(values == largest[:, None], n[None, :], 2147483647), axis=1)
        if part == 0:
            best, token = largest, lowest
        else:
            token = gl.where(largest > best, lowest, token)
            best = _larger(best, largest)
    m = first_row + gl.arange(0, BLOCK_M, layout=by_row)
    place = m * TILES + tile
    gl.store(tile_max + place, best, mask=m < rows)
    gl.store(tile_token + place, token, mask=m < rows)


def launch_stream(
    x: torch.Tensor,
    head: FoldedLinear,
    vocab_size: int,
    tile: LinearTile,
    tile_max: torch.Tensor,
    tile_token: torch.Tensor,
    x_stats: torch.Tensor,
) -> None:
    """`kernels.linear.head.best_of_tiles` on sm_90, for half precision.

    `tile` is as `LinearTile.fitted_head` leaves it.
    """
    rows, in_features = x.shape
    x_tiles = x_stats.shape[2]
    tiles = head.out_features // tile.block_n
    # Programs of one tile of tokens are neighbours: its weights are read from memory once.
    head_stream[(-(-rows // tile.block_m), tiles)](
        operand_descriptor(x, tile.block_m, tile.block_k),
        operand_descriptor(head.weight, HEAD_PART, tile.block_k),
        head.bias,
        head.bias if head.column_sums is None else head.column_sums,
        x_stats,
        tile_max,
        tile_token,
        rows,
        vocab_size,
        head.epsilon,
        K=in_features,
        NORM=head.norm,
        TILES=tiles,
        X_TILES=x_tiles,
        X_TILES_PAD=padded(x_tiles, 1),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        PART=HEAD_PART,
        STAGES=tile.stages,
        # One for every 16 rows: four multiply 64 together.
        num_warps=tile.block_m // 16,
        launch_pdl=True,
    )
