# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Adding to the residual stream what several ranks made of it together."""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.tiles.launch import padded


@triton.jit
def add_to_row(
    change,
    x,
    x_stats,
    E: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    W: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row: x += change, both [rows, E], and its statistics [rows, 2, TILES]."""
    row = tl.program_id(0)
    release_consumers(PDL)
    tile = tl.arange(0, TILES_PAD)
    place = row.to(tl.int64) * E + tile[:, None] * W + tl.arange(0, W)[None, :]
    in_row = (tile < TILES)[:, None]
    await_producers(PDL)
    before = tl.load(x + place, mask=in_row, other=0.0).to(tl.float32)
    added = before + tl.load(change + place, mask=in_row, other=0.0).to(tl.float32)
    rounded = added.to(x.dtype.element_ty)
    tl.store(x + place, rounded, mask=in_row)
    # Of the values as the next kernel will read them.
    values = rounded.to(tl.float32)
    total = tl.sum(values, axis=1)
    centred = values - (total / W)[:, None]
    stats = x_stats + row.to(tl.int64) * (2 * TILES) + tile
    tl.store(stats, total, mask=tile < TILES)
    tl.store(stats + TILES, tl.sum(centred * centred, axis=1), mask=tile < TILES)


def add_to_rows(change: torch.Tensor, x: torch.Tensor, x_stats: torch.Tensor | None) -> None:
    """x += change, and the statistics of x as `kernels.linear.row_statistics` has them.

    Parameters
    ----------
    change, x
        [rows, E], contiguous, of one dtype; x is changed.
    x_stats
        float32 [rows, 2, T], written; E / T is a power of two. None where nobody reads them.
    """
    if x_stats is None:
        x.add_(change)
        return
    rows, embed = x.shape
    tiles = x_stats.shape[2]
    add_to_row[(rows,)](
        change,
        x,
        x_stats,
        E=embed,
        TILES=tiles,
        TILES_PAD=padded(tiles, 1),
        W=embed // tiles,
        num_warps=8,
        **launch_options(launches_early(x)),
    )
