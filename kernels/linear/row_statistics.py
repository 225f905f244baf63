# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Mean and variance of rows, gathered from tiles of columns.

A kernel that produces a row in tiles of W columns stores, for each tile, the sum of its values and
the sum of squares of their differences from the tile's own mean: float32 [rows, 2, tiles]. Whoever
consumes the row adds the tiles up in one fixed order (Chan, Golub and LeVeque, 1979). Nothing is
added atomically, so results repeat bit for bit, and no large squares are subtracted, so a row whose
mean is far from zero keeps its variance.
"""

import triton
import triton.language as tl


@triton.jit
def store_tile_statistics(stats, row, in_batch, tile, values, TILES: tl.constexpr, W: tl.constexpr):
    """Statistics of `values` [M, W], columns `tile` * W and on of the rows `row` [M]."""
    total = tl.sum(values, axis=1)
    centred = values - (total / W)[:, None]
    place = stats + row.to(tl.int64) * (2 * TILES) + tile
    tl.store(place, total, mask=in_batch)
    tl.store(place + TILES, tl.sum(centred * centred, axis=1), mask=in_batch)


@triton.jit
def load_tile_statistics(stats, row, in_batch, TILES: tl.constexpr, TILES_PAD: tl.constexpr):
    """Sums and squared differences, each [M, TILES_PAD], zero beyond TILES."""
    tile = tl.arange(0, TILES_PAD)
    mask = in_batch[:, None] & (tile < TILES)[None, :]
    place = stats + row.to(tl.int64)[:, None] * (2 * TILES) + tile[None, :]
    return tl.load(place, mask=mask, other=0.0), tl.load(place + TILES, mask=mask, other=0.0)


@triton.jit
def combine_tile_statistics(
    sums,
    squares,
    epsilon,
    K: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    NORM: tl.constexpr,
):
    """Mean [M] and 1 / sqrt(variance + epsilon) [M] of rows of K values.

    For an RMS norm the variance is about a mean of zero.
    """
    W: tl.constexpr = K // TILES
    mean = tl.sum(sums, axis=1) / K
    if NORM == 2:
        mean = tl.zeros_like(mean)
    offset = sums / W - mean[:, None]
    is_tile = (tl.arange(0, TILES_PAD) < TILES)[None, :]
    between = tl.where(is_tile, offset * offset, 0.0) * W
    variance = tl.sum(squares + between, axis=1) / K
    return mean, tl.rsqrt(variance + epsilon)


@triton.jit
def whole_row_statistics(
    x, row, in_batch, epsilon, K: tl.constexpr, K_PAD: tl.constexpr, NORM: tl.constexpr
):
    """The same from the rows themselves, x [rows, K]: for few rows."""
    column = tl.arange(0, K_PAD)
    mask = in_batch[:, None] & (column < K)[None, :]
    values = tl.load(x + row.to(tl.int64)[:, None] * K + column[None, :], mask=mask, other=0.0)
    values = values.to(tl.float32)
    mean = tl.sum(values, axis=1) / K
    if NORM == 2:
        mean = tl.zeros_like(mean)
    centred = tl.where(mask, values - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, axis=1) / K
    return mean, tl.rsqrt(variance + epsilon)
