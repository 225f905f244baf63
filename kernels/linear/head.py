# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The LM head of greedy decoding: final norm, logits and each tile's best token at once.

Logits never reach memory: a tile of the vocabulary leaves its largest logit and that token's id,
and `kernels.step.rows.finish_step` picks the best tile.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    prefetch_rows,
    release_consumers,
)
from kernels.linear.folded import FoldedLinear
from kernels.linear.projections import runs_stream
from kernels.linear.row_statistics import (
    combine_tile_statistics,
    load_tile_statistics,
    whole_row_statistics,
)
from kernels.linear.vector import chunk_constants, load_strip, times_long_row, times_row
from kernels.tiles.launch import padded
from kernels.tiles.tile import LinearTile


@triton.jit
def _store_best(tile_max, tile_token, place, in_batch, logits, n, vocab_size):
    """The best of `logits` [M, N] of the tokens `n` [N], and which it is, at `place` [M]."""
    logits = tl.where((n < vocab_size)[None, :], logits, float("-inf"))
    best = tl.max(logits, axis=1)
    # The lowest id among equals. A maximum passes NaN by; it must not be lost.
    token = tl.min(tl.where(logits == best[:, None], n[None, :], 2147483647), axis=1)
    has_nan = tl.max((logits != logits).to(tl.int32), axis=1) > 0
    tl.store(tile_max + place, tl.where(has_nan, float("nan"), best), mask=in_batch)
    tl.store(tile_token + place, token, mask=in_batch)


@triton.jit(do_not_specialize=["rows", "vocab_size"])
def head_tiles(
    x,
    weight,
    bias,
    column_sums,
    x_stats,
    tile_max,
    tile_token,
    rows,
    vocab_size,
    epsilon,
    K: tl.constexpr,
    NORM: tl.constexpr,
    TILES: tl.constexpr,
    X_TILES: tl.constexpr,
    X_TILES_PAD: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """BLOCK_M rows against BLOCK_N tokens. Programs of one tile of tokens are neighbours."""
    tile_m = tl.program_id(0)
    tile_n = tl.program_id(1)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    in_batch = m < rows

    release_consumers(PDL)
    if PREFETCH and PDL:
        element_bytes: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        prefetch_rows(
            weight + tile_n.to(tl.int64) * BLOCK_N * K,
            BLOCK_N,
            K * element_bytes,
            K * element_bytes,
        )
    shift = tl.load(bias + n)
    if NORM == 1:
        column_sum = tl.load(column_sums + n)
    await_producers(PDL)

    if X_TILES > 0:
        sums, squares = load_tile_statistics(x_stats, m, in_batch, X_TILES, X_TILES_PAD)
        if BLOCK_M >= 128:
            # The statistics of so many rows would fill the registers that the loop needs.
            mean, rstd = combine_tile_statistics(
                sums, squares, epsilon, K, X_TILES, X_TILES_PAD, NORM
            )
    else:
        mean, rstd = whole_row_statistics(x, m, in_batch, epsilon, K, X_TILES_PAD, NORM)
    logits = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    x_tile = x + m[:, None] * K + k[None, :]
    w_tile = weight + n.to(tl.int64)[None, :] * K + k[:, None]
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN:
            x_values = tl.load(x_tile + start)
        else:
            x_values = tl.load(x_tile + start, mask=in_batch[:, None], other=0.0)
        logits = tl.dot(x_values, tl.load(w_tile + start), logits, input_precision="ieee")
    if X_TILES > 0 and BLOCK_M < 128:
        mean, rstd = combine_tile_statistics(sums, squares, epsilon, K, X_TILES, X_TILES_PAD, NORM)
    if NORM == 1:
        logits -= mean[:, None] * column_sum[None, :]
    logits = rstd[:, None] * logits + shift[None, :]
    place = m * TILES + tile_n
    _store_best(tile_max, tile_token, place, in_batch, logits, n, vocab_size)


@triton.jit(do_not_specialize=["vocab_size"])
def head_row(
    x,
    weight,
    bias,
    column_sums,
    tile_max,
    tile_token,
    vocab_size,
    epsilon,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    NORM: tl.constexpr,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row against BLOCK_N tokens, as `kernels.linear.vector.linear_row` multiplies."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, CHUNK)
    release_consumers(PDL)
    strip = load_strip(weight, n.to(tl.int64), k, K)
    shift = tl.load(bias + n)
    column_sum = shift
    if NORM == 1:
        column_sum = tl.load(column_sums + n)
    await_producers(PDL)
    if CHUNK < K:
        logits = times_long_row(
            strip, weight, n.to(tl.int64), x, row, k, column_sum, epsilon,
            K, K_PAD, NORM, CHUNK, STAGES,
        )  # fmt: skip
    else:
        logits = times_row(strip, x, row, k, column_sum, epsilon, K, NORM)
    logits += shift
    place = row * TILES + tile + tl.arange(0, 1)
    # Every program has a row, so nothing is masked.
    _store_best(tile_max, tile_token, place, place >= 0, logits[None, :], n, vocab_size)


def best_of_tiles(
    x: torch.Tensor,
    head: FoldedLinear,
    vocab_size: int,
    tile: LinearTile,
    tile_max: torch.Tensor,
    tile_token: torch.Tensor,
    *,
    x_stats: torch.Tensor | None = None,
) -> None:
    """The largest logit, and its token, of each tile of the vocabulary.

    Parameters
    ----------
    x
        [rows, K], contiguous: the residual stream before the final norm.
    head
        The head with the final norm folded in. Its rows from `vocab_size` on are padding.
    tile
        Must divide the head; it cannot split K. Of one row: the matrix-vector kernel, which makes
        its own statistics. With `tma` the Hopper kernel serves half precision with `x_stats`, by
        tiles as `LinearTile.fitted_head` leaves them.
    tile_max, tile_token
        float32 and int32 [rows, N / block_n], written. NaN where any logit of the tile is NaN;
        the lowest id where several tie.
    x_stats
        As in `kernels.linear.projections.fused_linear`.
    """
    rows, in_features = x.shape
    tiles = head.out_features // tile.block_n
    column_sums = head.bias if head.column_sums is None else head.column_sums
    if tile.block_m == 1:
        head_row[(rows, tiles)](
            x,
            head.weight,
            head.bias,
            column_sums,
            tile_max,
            tile_token,
            vocab_size,
            head.epsilon,
            K=in_features,
            K_PAD=padded(in_features),
            NORM=head.norm,
            TILES=tiles,
            **chunk_constants(tile, in_features),
            BLOCK_N=tile.block_n,
            num_warps=tile.warps,
            **launch_options(launches_early(x)),
        )
        return
    if tile.tma and x_stats is not None and runs_stream(x):
        from kernels.linear.hopper.head import launch_stream

        launch_stream(x, head, vocab_size, tile, tile_max, tile_token, x_stats)
        return
    x_tiles = 0 if x_stats is None else x_stats.shape[2]
    head_tiles[(-(-rows // tile.block_m), tiles)](
        x,
        head.weight,
        head.bias,
        column_sums,
        head.bias if x_stats is None else x_stats,
        tile_max,
        tile_token,
        rows,
        vocab_size,
        head.epsilon,
        K=in_features,
        NORM=head.norm,
        TILES=tiles,
        X_TILES=x_tiles,
        X_TILES_PAD=padded(in_features) if x_stats is None else padded(x_tiles, 1),
        EVEN=rows % tile.block_m == 0,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        STAGES=tile.stages,
        PREFETCH=tile.prefetch,
        num_warps=tile.warps,
        **launch_options(launches_early(x)),
    )
