# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The greedy LM head on Hopper, in Gluon: a stream of weights past rows that stay put.

The same as `kernels.lm_head.head_tiles`, which is its reference. One program a multiprocessor keeps
its rows of x in shared memory and walks the tiles of the vocabulary; their weights come through a
ring of chunks that is full before the last block has ended and never runs dry between tiles.
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
from triton.language import debug_barrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.folded_linear import FoldedLinear
from kernels.fused_configs import LinearTile
from kernels.fused_linear_tma import (
    combine_statistics,
    load_statistics,
    operand_descriptor,
    statistics_layout,
)
from kernels.gluon_names import copy_tile
from kernels.launch import padded
from kernels.running_softmax import multiprocessors


@gluon.jit
def _request(
    weight_desc, ring, ready, chunk, num_chunks, first_tile, tile_step,
    CHUNKS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Have the copy engine bring chunk number `chunk` of this program's tiles into its stage."""
    if chunk < num_chunks:
        stage = chunk % STAGES
        tile = first_tile + (chunk // CHUNKS) * tile_step
        element_bytes: gl.constexpr = weight_desc.dtype.primitive_bitwidth // 8
        mbarrier.expect(ready.index(stage), BLOCK_N * BLOCK_K * element_bytes)
        copy_tile(
            weight_desc,
            [tile * BLOCK_N, (chunk % CHUNKS) * BLOCK_K],
            ready.index(stage),
            ring.index(stage),
        )


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
    TILES: gl.constexpr,
    X_TILES: gl.constexpr,
    X_TILES_PAD: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Up to BLOCK_M rows against every `num_programs`-th tile of BLOCK_N tokens."""
    CHUNKS: gl.constexpr = K // BLOCK_K
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16]
    )
    by_row: gl.constexpr = gl.SliceLayout(1, mma)
    by_column: gl.constexpr = gl.SliceLayout(0, mma)
    element_bytes: gl.constexpr = x_desc.dtype.primitive_bitwidth // 8
    first_tile = gl.program_id(0)
    tile_step = gl.num_programs(0)
    num_tiles = (TILES - first_tile + tile_step - 1) // tile_step
    num_chunks = num_tiles * CHUNKS

    x_chunks = gl.allocate_shared_memory(x_desc.dtype, [CHUNKS, BLOCK_M, BLOCK_K], x_desc.layout)
    ring = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], weight_desc.layout
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    x_ready = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    mbarrier.init(x_ready.index(0), count=1)
    fence_async_shared()
    gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        _request(
            weight_desc, ring, ready, i, num_chunks, first_tile, tile_step,
            CHUNKS, BLOCK_N, BLOCK_K, STAGES,
        )  # fmt: skip

    gdc_wait()
    mbarrier.expect(x_ready.index(0), BLOCK_M * K * element_bytes)
    for i in gl.static_range(CHUNKS):
        copy_tile(x_desc, [0, i * BLOCK_K], x_ready.index(0), x_chunks.index(i))
    flat: gl.constexpr = statistics_layout(X_TILES_PAD, gl.num_warps())
    stats_row = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, flat))
    stats_tile = gl.arange(0, X_TILES_PAD, layout=gl.SliceLayout(0, flat))
    sums, squares = load_statistics(x_stats, stats_row, stats_tile, rows, X_TILES)
    mean, rstd = combine_statistics(sums, squares, stats_tile, epsilon, K, X_TILES, by_row)
    m = gl.arange(0, BLOCK_M, layout=by_row)
    column = gl.arange(0, BLOCK_N, layout=by_column)
    mbarrier.wait(x_ready.index(0), 0)

    for visit in range(num_tiles):
        tile = first_tile + visit * tile_step
        n = tile * BLOCK_N + column
        shift = gl.load(bias + n)
        column_sum = gl.load(column_sums + n)
        logits = warpgroup_mma_init(gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout=mma))
        for i in gl.static_range(CHUNKS):
            chunk = visit * CHUNKS + i
            mbarrier.wait(ready.index(chunk % STAGES), (chunk // STAGES) & 1)
            logits = warpgroup_mma(
                x_chunks.index(i),
                ring.index(chunk % STAGES).permute((1, 0)),
                logits,
                is_async=True,
            )
            if i > 0:
                # All warps are done with the chunk before this one: its stage is free.
                logits = warpgroup_mma_wait(1, deps=(logits,))
                debug_barrier()
                _request(
                    weight_desc, ring, ready, chunk - 1 + STAGES, num_chunks, first_tile,
                    tile_step, CHUNKS, BLOCK_N, BLOCK_K, STAGES,
                )  # fmt: skip
        logits = warpgroup_mma_wait(0, deps=(logits,))
        debug_barrier()
        _request(
            weight_desc, ring, ready, (visit + 1) * CHUNKS - 1 + STAGES, num_chunks, first_tile,
            tile_step, CHUNKS, BLOCK_N, BLOCK_K, STAGES,
        )  # fmt: skip
        logits = rstd[:, None] * (logits - mean[:, None] * column_sum[None, :]) + shift[None, :]
        logits = gl.where((n < vocab_size)[None, :], logits, float("-inf"))
        best = gl.max(logits, axis=1)
        # The lowest id among equals. A maximum passes NaN by; it must not be lost.
        token = gl.min(gl.where(logits == best[:, None], n[None, :], 2147483647), axis=1)
        has_nan = gl.max((logits != logits).to(gl.int32), axis=1) > 0
        place = m * TILES + tile
        gl.store(tile_max + place, gl.where(has_nan, float("nan"), best), mask=m < rows)
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
    """`kernels.lm_head.best_of_tiles` on sm_90, for half precision and at most `block_m` rows.

    `tile.stages` chunks of `block_n` by `block_k` weights and the rows must fit into shared memory.
    """
    rows, in_features = x.shape
    x_tiles = x_stats.shape[2]
    tiles = head.out_features // tile.block_n
    head_stream[(min(tiles, multiprocessors(x.device)),)](
        operand_descriptor(x, tile.block_m, tile.block_k),
        operand_descriptor(head.weight, tile.block_n, tile.block_k),
        head.bias,
        head.column_sums,
        x_stats,
        tile_max,
        tile_token,
        rows,
        vocab_size,
        head.epsilon,
        K=in_features,
        TILES=tiles,
        X_TILES=x_tiles,
        X_TILES_PAD=padded(x_tiles, 1),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.stages,
        num_warps=4,
        launch_pdl=True,
    )
