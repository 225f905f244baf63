# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Fused linear maps on Hopper, in Gluon: operands stream through shared memory in chunks of K.

The same map as `kernels.linear.projections.linear_tiles`, which is its reference. Weights are
copied to shared memory by the copy engine before a program waits for its producers, and the rows of
x right after: as many chunks as there are stages. With a stage for every chunk each byte is
requested at once, and what then remains is one chain of matrix instructions. Plain Triton cannot
say that: its pipelined loop starts weights and rows together.

Weights are the left operand. Tensor cores take no fewer than 64 of its rows, features here, but as
few as eight of the right one's, tokens: a small batch is not padded to 64, and the few rows that a
program must read after its wait leave other programs room to bring their weights beside it.

With weights of e4m3 each row of x is two, `kernels.linear.halves`: tensor cores multiply eight bits
by eight, as many products a second as with one row of 16 bits. A map may take one for each row, and
multiplies twice as many. The products of a chunk are added up by themselves, as tensor cores add
those of eight bits with fewer bits than float32 has.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.hopper.cluster import inbox_bytes, launch_clusters, open_inbox, summed_share
from kernels.hopper.names import copy_tile, program_barrier
from kernels.linear.epilogue import Epilogue
from kernels.linear.folded import NO_NORM, FoldedLinear
from kernels.linear.halves import REST, halves_of
from kernels.tiles.launch import padded
from kernels.tiles.tile import WIDE_CHUNKS, LinearTile

MOST_UNROLLED = gl.constexpr(32)
"""Chunks of K that are written out one after another."""
_WIDE_CHUNKS = gl.constexpr(WIDE_CHUNKS)
GLUON_TYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


@gluon.jit
def activated(x, ACTIVATION: gl.constexpr):
    """`kernels.linear.epilogue_kernel.activated`."""
    if ACTIVATION == 1:
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x / (1.0 + gl.exp(-2.0 * u))
    if ACTIVATION == 2:
        x = x / (1.0 + gl.exp(-x))
    return x


@gluon.jit
def _gated(mapped, ACTIVATION: gl.constexpr, FEATURES: gl.constexpr, ROWS: gl.constexpr):
    """`gated` of a packed map's [FEATURES, ROWS]: [FEATURES / 2, ROWS]. Moves nothing.

    A thread that has feature i of a piece of 16 has feature i + 8, too.
    """
    by_turns = gl.reshape(mapped, [FEATURES // 16, 2, 8, ROWS])
    gate, other = gl.split(gl.permute(by_turns, (0, 2, 3, 1)))
    return gl.reshape(activated(gate, ACTIVATION) * other, [FEATURES // 2, ROWS])


@gluon.jit
def load_statistics(
    stats, row, tile, rows, TILES: gl.constexpr
):  # fmt: skip
    """`load_tile_statistics` of the rows `row` [M] and the tiles `tile` [T]."""
    mask = (row < rows)[:, None] & (tile < TILES)[None, :]
    place = stats + row[:, None] * (2 * TILES) + tile[None, :]
    return gl.load(place, mask=mask, other=0.0), gl.load(place + TILES, mask=mask, other=0.0)


@gluon.jit
def combine_statistics(
    sums, squares, tile, epsilon,
    K: gl.constexpr, TILES: gl.constexpr, NORM: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """`combine_tile_statistics`, in `layout`."""
    W: gl.constexpr = K // TILES
    mean = gl.sum(sums, axis=1) / K
    if NORM == 2:
        mean = gl.zeros_like(mean)
    offset = sums / W - mean[:, None]
    between = gl.where((tile < TILES)[None, :], offset * offset, 0.0) * W
    variance = gl.sum(squares + between, axis=1) / K
    rstd = gl.rsqrt(variance + epsilon)
    return gl.convert_layout(mean, layout), gl.convert_layout(rstd, layout)


@gluon.constexpr_function
def statistics_layout(tiles, warps):
    """A thread loads four neighbouring tiles of a row at once; `tiles` is a power of two."""
    lanes = min(8, max(1, tiles // 4))
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.constexpr_function
def product_layout(rows, warps, bits=16):
    """Where a product [features, rows] of such numbers lies in registers: 16 features a warp."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, rows, 256 // bits]
    )


@gluon.constexpr_function
def memory_layout(features, rows, warps):
    """A tile [features, rows] as memory has it: threads beside each other share a row's bytes."""
    vector = min(8, features * rows // (32 * warps))
    lanes = min(32, features // vector)
    return gl.BlockedLayout([vector, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


@gluon.jit
def _refill(
    weight_desc, x_desc, w_chunks, x_chunks, ready, chunk, first_n, first_m, first_k,
    CHUNK_BYTES: gl.constexpr, BLOCK_K: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Have the copy engine fill the stage of chunk number `chunk` with the one after the last.

    All warps are done with the chunk, or will be before they come here. Does nothing where there is
    no such chunk, or none is left.
    """
    if (chunk >= 0) & (chunk + STAGES < CHUNKS):
        program_barrier()
        stage = chunk % STAGES
        k = first_k + (chunk + STAGES) * BLOCK_K
        mbarrier.expect(ready.index(stage), CHUNK_BYTES)
        copy_tile(weight_desc, [first_n, k], ready.index(stage), w_chunks.index(stage))
        copy_tile(x_desc, [first_m, k], ready.index(stage), x_chunks.index(stage))


@gluon.jit
def _multiplied(
    w_chunks, x_chunks, ready, chunk, products, ADDED: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Begin to multiply a chunk once it is there, added to `products` or, not ADDED, afresh."""
    stage = chunk % STAGES
    mbarrier.wait(ready.index(stage), (chunk // STAGES) & 1)
    x_chunk = x_chunks.index(stage).permute((1, 0))
    return warpgroup_mma(w_chunks.index(stage), x_chunk, products, use_acc=ADDED, is_async=True)


@gluon.jit
def _product_of_halves(
    weight_desc, x_desc, w_chunks, x_chunks, ready, first_n, first_m, first_k,
    CHUNK_BYTES: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_K: gl.constexpr, CHUNKS: gl.constexpr, STAGES: gl.constexpr, HALVES: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """The product [BLOCK_N, BLOCK_M] of weights of e4m3 and rows that are HALVES each.

    A WIDE tile leaves no room for another program, which would multiply while this one adds. It
    adds up the products of two chunks while those of the next two are made.
    """
    layout: gl.constexpr = product_layout(HALVES * BLOCK_M, gl.num_warps(), 8)
    total = gl.zeros((BLOCK_N, HALVES * BLOCK_M), gl.float32, layout=layout)
    if WIDE:
        for i in range(0, CHUNKS, _WIDE_CHUNKS):
            made = total
            before = total
            for j in gl.static_range(_WIDE_CHUNKS):
                if j == 2:
                    before = made
                sums = made if j % 2 else total
                made = _multiplied(w_chunks, x_chunks, ready, i + j, sums, j % 2 == 1, STAGES)
                if j == 2:
                    before = warpgroup_mma_wait(1, deps=(before,))
                else:
                    made = warpgroup_mma_wait(1, deps=(made,))
                _refill(
                    weight_desc, x_desc, w_chunks, x_chunks, ready, i + j - 1, first_n, first_m,
                    first_k, CHUNK_BYTES, BLOCK_K, CHUNKS, STAGES,
                )  # fmt: skip
                if j == 2:
                    total += before
            total += warpgroup_mma_wait(0, deps=(made,))
    else:
        for i in range(CHUNKS):
            made = _multiplied(w_chunks, x_chunks, ready, i, total, False, STAGES)
            total += warpgroup_mma_wait(0, deps=(made,))
            _refill(
                weight_desc, x_desc, w_chunks, x_chunks, ready, i, first_n, first_m, first_k,
                CHUNK_BYTES, BLOCK_K, CHUNKS, STAGES,
            )  # fmt: skip
    # What follows may exchange in the operands' memory.
    program_barrier()
    if HALVES == 2:
        by_half = gl.permute(gl.reshape(total, [BLOCK_N, 2, BLOCK_M]), (0, 2, 1))
        first, rest = gl.split(by_half)
        product = first + rest * REST
    else:
        product = total
    return gl.convert_layout(product, product_layout(BLOCK_M, gl.num_warps()))


@gluon.jit(do_not_specialize=["rows", "inbox_at"])
def linear_stream(
    x_desc,
    weight_desc,
    bias,
    column_sums,
    x_stats,
    y,
    y_stats,
    rows,
    epsilon,
    scales,
    row_scales,
    inbox_at,
    N: gl.constexpr,
    K: gl.constexpr,
    NORM: gl.constexpr,
    X_TILES: gl.constexpr,
    X_TILES_PAD: gl.constexpr,
    ACTIVATION: gl.constexpr,
    GATED: gl.constexpr,
    ADDED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    BESIDE: gl.constexpr,
    STAGES: gl.constexpr,
    HALVES: gl.constexpr,
):
    """BLOCK_N features of BLOCK_M rows of y [rows, N], x normed first where NORM says so.

    The SPLIT_K programs of a cluster multiply a part of K each, and finish a share of the tile's
    rows each; or BESIDE programs of a cluster have other rows. A weight of e4m3 has scales [N], and
    its rows, HALVES each in x, row_scales [rows].
    """
    PART_K: gl.constexpr = K // SPLIT_K
    OWN_M: gl.constexpr = BLOCK_M // SPLIT_K
    CHUNKS: gl.constexpr = PART_K // BLOCK_K
    product: gl.constexpr = product_layout(BLOCK_M, gl.num_warps())
    own: gl.constexpr = product_layout(OWN_M, gl.num_warps())
    by_feature: gl.constexpr = gl.SliceLayout(1, own)
    by_row: gl.constexpr = gl.SliceLayout(0, own)
    OUT: gl.constexpr = 2 if GATED else 1
    OUT_N: gl.constexpr = BLOCK_N // OUT
    lines: gl.constexpr = memory_layout(OUT_N, OWN_M, gl.num_warps())
    EIGHT: gl.constexpr = scales is not None
    # Then registers have room for little else than products.
    WIDE: gl.constexpr = EIGHT and BLOCK_N > 64 and CHUNKS % _WIDE_CHUNKS == 0
    X_ROWS: gl.constexpr = HALVES * BLOCK_M
    CHUNK_BYTES: gl.constexpr = (
        (X_ROWS + BLOCK_N) * BLOCK_K * (x_desc.dtype.primitive_bitwidth // 8)
    )
    # Programs that read the same weights are neighbours.
    part = gl.program_id(0) % SPLIT_K
    tile_m = gl.program_id(0) // SPLIT_K
    tile_n = gl.program_id(1)
    if SPLIT_K > 1:
        open_inbox(inbox_at, SPLIT_K, OWN_M * BLOCK_N)

    x_chunks = gl.allocate_shared_memory(x_desc.dtype, [STAGES, X_ROWS, BLOCK_K], x_desc.layout)
    w_chunks = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], weight_desc.layout
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        mbarrier.expect(ready.index(i), CHUNK_BYTES)
        copy_tile(
            weight_desc,
            [tile_n * BLOCK_N, part * PART_K + i * BLOCK_K],
            ready.index(i),
            w_chunks.index(i),
        )
    first_n = tile_n * BLOCK_N
    first_m = tile_m * BLOCK_M + part * OWN_M
    n = first_n + gl.arange(0, BLOCK_N, layout=by_feature)
    shift = gl.load(bias + n)
    if NORM == 1:
        column_sum = gl.load(column_sums + n)
    if EIGHT:
        scale = gl.load(scales + n)

    gdc_wait()
    for i in gl.static_range(STAGES):
        copy_tile(
            x_desc,
            [tile_m * X_ROWS, part * PART_K + i * BLOCK_K],
            ready.index(i),
            x_chunks.index(i),
        )
    # While the copies are on their way.
    line_n = tile_n * OUT_N + gl.arange(0, OUT_N, layout=gl.SliceLayout(1, lines))
    line_m = first_m + gl.arange(0, OWN_M, layout=gl.SliceLayout(0, lines))
    y_lines = y + line_m[None, :] * (N // OUT) + line_n[:, None]
    in_batch = (line_m < rows)[None, :]
    if NORM > 0:
        flat: gl.constexpr = statistics_layout(X_TILES_PAD, gl.num_warps())
        stats_row = first_m + gl.arange(0, OWN_M, layout=gl.SliceLayout(1, flat))
        stats_tile = gl.arange(0, X_TILES_PAD, layout=gl.SliceLayout(0, flat))
        sums, squares = load_statistics(x_stats, stats_row, stats_tile, rows, X_TILES)
    if ADDED and not WIDE:
        residual = gl.convert_layout(gl.load(y_lines, mask=in_batch, other=0.0), own)

    if EIGHT:
        scaled_m = first_m + gl.arange(0, OWN_M, layout=by_row)
        row_scale = gl.load(row_scales + scaled_m, mask=scaled_m < rows, other=0.0)
        accumulator = _product_of_halves(
            weight_desc, x_desc, w_chunks, x_chunks, ready, first_n, tile_m * X_ROWS,
            part * PART_K, CHUNK_BYTES, BLOCK_N, BLOCK_M, BLOCK_K, CHUNKS, STAGES, HALVES, WIDE,
        )  # fmt: skip
    else:
        accumulator = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout=product)
    if EIGHT:
        pass
    elif CHUNKS <= MOST_UNROLLED:
        accumulator = warpgroup_mma_init(accumulator)
        for i in gl.static_range(CHUNKS):
            accumulator = _multiplied(w_chunks, x_chunks, ready, i, accumulator, True, STAGES)
            if (i > 0) & (i - 1 + STAGES < CHUNKS):
                # The stage before this one is filled again, once the product of its chunk is made.
                accumulator = warpgroup_mma_wait(1, deps=(accumulator,))
                _refill(
                    weight_desc, x_desc, w_chunks, x_chunks, ready, i - 1, first_n,
                    tile_m * BLOCK_M, part * PART_K, CHUNK_BYTES, BLOCK_K, CHUNKS, STAGES,
                )  # fmt: skip
    else:
        for i in range(CHUNKS):
            made = _multiplied(w_chunks, x_chunks, ready, i, accumulator, True, STAGES)
            accumulator = warpgroup_mma_wait(1, deps=(made,))
            _refill(
                weight_desc, x_desc, w_chunks, x_chunks, ready, i - 1, first_n, tile_m * BLOCK_M,
                part * PART_K, CHUNK_BYTES, BLOCK_K, CHUNKS, STAGES,
            )  # fmt: skip
    # While the tensor cores are at work.
    if NORM > 0:
        mean, rstd = combine_statistics(
            sums, squares, stats_tile, epsilon, K, X_TILES, NORM, by_row
        )
    if not EIGHT:
        # Operands and barriers live until here: what is exchanged above must not lie in their
        # memory.
        accumulator, _, _, _ = warpgroup_mma_wait(0, deps=(accumulator, w_chunks, x_chunks, ready))

    if ADDED and WIDE:
        residual = gl.convert_layout(gl.load(y_lines, mask=in_batch, other=0.0), own)
    result = accumulator
    if SPLIT_K > 1:
        result = summed_share(accumulator, inbox_at, BLOCK_N, BLOCK_M, SPLIT_K, own)
    if EIGHT:
        result *= scale[:, None] * row_scale[None, :]
    if NORM == 1:
        result -= mean[None, :] * column_sum[:, None]
    if NORM > 0:
        result = rstd[None, :] * result
    result += shift[:, None]
    result = _gated(result, ACTIVATION, BLOCK_N, OWN_M) if GATED else activated(result, ACTIVATION)
    if ADDED:
        result += residual.to(gl.float32)
    rounded = result.to(y.dtype.element_ty)
    gl.store(y_lines, gl.convert_layout(rounded, lines), mask=in_batch)
    if ADDED:
        TILES: gl.constexpr = N // BLOCK_N
        m = first_m + gl.arange(0, OWN_M, layout=by_row)
        values = rounded.to(gl.float32)
        total = gl.sum(values, axis=0)
        centred = values - (total / BLOCK_N)[None, :]
        place = y_stats + m * (2 * TILES) + tile_n
        gl.store(place, total, mask=m < rows)
        gl.store(place + TILES, gl.sum(centred * centred, axis=0), mask=m < rows)


def operand_descriptor(matrix: torch.Tensor, block_rows: int, block_k: int) -> TensorDescriptor:
    """How the copy engine sees `matrix` [rows, K]: in boxes, zero beyond its last row."""
    layout = gl.NVMMASharedLayout.get_default_for([block_rows, block_k], GLUON_TYPES[matrix.dtype])
    return TensorDescriptor.from_tensor(matrix, [block_rows, block_k], layout)


def launch_linear_stream(
    x: torch.Tensor,
    linear: FoldedLinear,
    y: torch.Tensor,
    tile: LinearTile,
    *,
    epilogue: Epilogue,
    x_stats: torch.Tensor | None,
    y_stats: torch.Tensor | None,
) -> None:
    """`kernels.linear.projections.fused_linear` on sm_90, for half precision.

    `tile.is_possible` holds, and `tile.stages` chunks of both operands must fit into shared memory,
    beside what a cluster sends. A norm needs `x_stats`, but not before a weight of e4m3, which has
    a scale for each row.
    """
    rows, in_features = len(y), linear.in_features
    out_features, bias, norm = linear.out_features, linear.bias, linear.norm
    halves, row_scales = 1, None
    if linear.scales is not None:
        x, row_scales = halves_of(x, linear, tile.block_m)
        halves, norm = linear.halves, NO_NORM
    row_tiles = -(-rows // tile.block_m)
    # Two that read the same weights run at the same time if they are a cluster.
    are_paired = linear.scales is not None and tile.split_k == 1 and row_tiles % 2 == 0
    beside = 2 if are_paired else 1
    x_tiles = 0 if not norm or x_stats is None else x_stats.shape[2]
    launch_clusters(
        linear_stream,
        (row_tiles // beside, out_features // tile.block_n),
        tile.split_k * beside,
        inbox_bytes(tile.split_k, tile.block_m // tile.split_k * tile.block_n),
        operand_descriptor(x, halves * tile.block_m, tile.block_k),
        operand_descriptor(linear.weight, tile.block_n, tile.block_k),
        bias,
        bias if linear.column_sums is None else linear.column_sums,
        bias if x_stats is None else x_stats,
        y,
        bias if y_stats is None else y_stats,
        rows,
        linear.epsilon,
        linear.scales,
        row_scales,
        N=out_features,
        K=in_features,
        NORM=norm,
        X_TILES=x_tiles,
        X_TILES_PAD=padded(x_tiles, 1) if x_tiles else 1,
        **epilogue.constants(),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        SPLIT_K=tile.split_k,
        BESIDE=beside,
        STAGES=min(tile.stages, in_features // tile.split_k // tile.block_k),
        HALVES=halves,
        # One for every 16 features: four multiply 64 together.
        num_warps=tile.block_n // 16,
        launch_pdl=True,
    )
