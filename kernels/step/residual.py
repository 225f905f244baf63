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
def store_row(
    added, x, x_stats, row, place, tile, in_row, TILES: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """One row of x, at `place`, and its statistics [rows, 2, TILES], where there are any."""
    rounded = added.to(x.dtype.element_ty)
    tl.store(x + place, rounded, mask=in_row)
    if x_stats is not None:
        # Of the values as the next kernel will read them.
        values = rounded.to(tl.float32)
        total = tl.sum(values, axis=1)
        centred = values - (total / W)[:, None]
        stats = x_stats + row * (2 * TILES) + tile
        tl.store(stats, total, mask=tile < TILES)
        tl.store(stats + TILES, tl.sum(centred * centred, axis=1), mask=tile < TILES)


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
    store_row(added, x, x_stats, row.to(tl.int64), place, tile, in_row, TILES, W)


@triton.jit
def add_ranks_to_row(
    parts,
    flags,
    x,
    x_stats,
    E: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    W: tl.constexpr,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `add_to_row`, where each of SIZE ranks has a part of the change.

    `parts` and `flags` are addresses in each rank's memory, int64 [SIZE]: of its part [rows, E],
    and of int32 [rows, SIZE], where each of the others leaves a one when it has made its part, and
    the rank a zero when it has seen that.
    """
    row = tl.program_id(0).to(tl.int64)
    release_consumers(PDL)
    tile = tl.arange(0, TILES_PAD)
    column = tile[:, None] * W + tl.arange(0, W)[None, :]
    place, in_row = row * E + column, column < E
    await_producers(PDL)
    total = tl.load(x + place, mask=in_row, other=0.0).to(tl.float32)
    for other in tl.static_range(SIZE):
        if other != RANK:
            theirs = tl.load(flags + other).to(tl.pointer_type(tl.int32)) + row * SIZE + RANK
            while tl.atomic_cas(theirs, 0, 1, sem="acq_rel", scope="sys") != 0:
                pass
    for other in tl.static_range(SIZE):
        if other != RANK:
            ours = tl.load(flags + RANK).to(tl.pointer_type(tl.int32)) + row * SIZE + other
            while tl.atomic_cas(ours, 1, 0, sem="acq_rel", scope="sys") != 1:
                pass
    # What one thread has seen the others see, too.
    tl.debug_barrier()
    change = tl.zeros_like(total)
    for other in tl.static_range(SIZE):
        address = tl.multiple_of(tl.load(parts + other), 16)
        part = tl.multiple_of(address.to(tl.pointer_type(x.dtype.element_ty)), 16)
        change += tl.load(part + place, mask=in_row, other=0.0, volatile=True).to(tl.float32)
    store_row(total + change, x, x_stats, row, place, tile, in_row, TILES, W)


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


def add_ranks_to_rows(
    parts: torch.Tensor,
    flags: torch.Tensor,
    rank: int,
    x: torch.Tensor,
    x_stats: torch.Tensor | None,
) -> None:
    """x += the sum of all ranks' parts of a change, once each has made its own.

    All ranks add in the same order, so that x is the same on them, bit for bit. A part may be
    written again when the next but one is to be added, on the same rows or fewer: then all ranks
    have read it.

    Parameters
    ----------
    parts, flags
        int64 [ranks]: addresses in the memory of each rank, of its part [rows, E] in the dtype of
        x, and of its flags, int32 [rows, ranks], which are zero between launches.
    rank
        Whose x this is.
    x
        [rows, E], contiguous; changed.
    x_stats
        As `add_to_rows` takes them.
    """
    rows, embed = x.shape
    tiles = 1 if x_stats is None else x_stats.shape[2]
    # A row without statistics may be of any width.
    width = padded(embed, 1) if x_stats is None else embed // tiles
    add_ranks_to_row[(rows,)](
        parts,
        flags,
        x,
        x_stats,
        E=embed,
        TILES=tiles,
        TILES_PAD=padded(tiles, 1),
        W=width,
        RANK=rank,
        SIZE=len(parts),
        num_warps=8,
        **launch_options(launches_early(x)),
    )
