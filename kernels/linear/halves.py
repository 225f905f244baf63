# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Rows of 16 bits as two rows of e4m3 each: what is nearest, and sixteen times what is left of it.

An e4m3 number has four bits, so the two have eight together, as many as a bfloat16. Tensor cores
multiply them with weights of e4m3, which are read once for both, and the products are added. Where
a map asks for it the first half alone stands for the row: rounded more, and half the work.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.linear.folded import NO_NORM, FoldedLinear
from kernels.linear.fp8 import FP8, LARGEST
from kernels.tiles.launch import padded

REST = tl.constexpr(1.0 / 16.0)
"""What the second half is to be multiplied by."""
_LARGEST = tl.constexpr(LARGEST)
_TINY = tl.constexpr(1e-30)


@triton.jit
def rounded(values):
    """The e4m3 number that is nearest to each of these, of two the even one, in float32.

    A conversion there and back would do, but the assembler of CUDA 12 and 13 mistakes what it reads
    where four numbers are packed, and Triton's interpreter rounds 1.95 to 1.
    """
    # Behind its first bit a number keeps three of 23.
    bits = values.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # The smallest are multiples of 2**-9, as all numbers are to which so much was added.
    small = (values + 24576.0) - 24576.0
    return tl.where(tl.abs(values) < 0.015625, small, bits.to(tl.float32, bitcast=True))


@triton.jit
def halve_rows(
    x,
    gain,
    halves,
    row_scales,
    epsilon,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    NORM: tl.constexpr,
    TILE: tl.constexpr,
    HALVES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row of x [rows, K], normed first where NORM says so and times the gain [K] of its norm.

    A tile of TILE rows of x is one of `halves` [tiles, HALVES, TILE, K], its first halves before
    the second ones, if there are any; the row is the sum of both times its scale.
    """
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K_PAD)
    in_row = column < K
    await_producers(PDL)
    values = tl.load(x + row * K + column, mask=in_row, other=0.0).to(tl.float32)
    if NORM == 1:
        values = tl.where(in_row, values - tl.sum(values, axis=0) / K, 0.0)
    if NORM > 0:
        values *= tl.rsqrt(tl.sum(values * values, axis=0) / K + epsilon)
    if gain is not None:
        values *= tl.load(gain + column, mask=in_row, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0) / _LARGEST, _TINY)
    values = tl.clamp(values / scale, -_LARGEST, _LARGEST)
    nearest = rounded(values)
    place = halves + (row // TILE * (HALVES * TILE) + row % TILE) * K + column
    tl.store(place, nearest.to(tl.float8e4nv), mask=in_row)
    if HALVES == 2:
        rest = rounded((values - nearest) / REST)
        tl.store(place + TILE * K, rest.to(tl.float8e4nv), mask=in_row)
    tl.store(row_scales + row, scale)


def halves_of(
    x: torch.Tensor, linear: FoldedLinear, tile_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of x [rows, K] as a map of e4m3 takes them, with its norm, which it may have.

    Returns
    -------
    halves
        e4m3 [`linear.halves` R, K], R being the rows of whole tiles; those that x lacks are not
        written.
    row_scales
        float32 [rows].
    """
    norm = linear.norm, linear.gain, linear.epsilon
    return _halved(x, linear.halves, tile_rows, *norm)


def rounded_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of x [rows, K] as e4m3, one each, and their scales, float32 [rows]."""
    return _halved(x, 1, 1, NO_NORM, None, 0.0)


def _halved(
    x: torch.Tensor,
    num_halves: int,
    tile_rows: int,
    norm: int,
    gain: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, in_features = x.shape
    whole = -(-rows // tile_rows) * tile_rows
    halves = torch.empty(num_halves * whole, in_features, dtype=FP8, device=x.device)
    row_scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    halve_rows[(rows,)](
        x,
        gain,
        halves,
        row_scales,
        epsilon,
        K=in_features,
        K_PAD=padded(in_features),
        NORM=norm,
        TILE=tile_rows,
        HALVES=num_halves,
        num_warps=8,
        **launch_options(launches_early(x)),
    )
    return halves, row_scales
