# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Rows of 16 bits as two rows of e4m3 each: what is nearest, and sixteen times what is left of it.

An e4m3 number has four bits, so the two have eight together, as many as a bfloat16. Tensor cores
multiply them with weights of e4m3, which are read once for both, and the products are added. Where
a map asks for it the first half alone stands for the row: rounded more, and half the work.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.hopper.limits import MULTIPROCESSORS
from kernels.linear.epilogue import NO_ACTIVATION
from kernels.linear.epilogue_kernel import activated
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
    GATED: tl.constexpr,
    PACKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row of x [rows, K], normed first where NORM says so and times the gain [K] of its norm.

    GATED is x [rows, 2 K], of which `kernels.linear.gate_kernel.gated_rows` would make the row.
    A tile of TILE rows of x is one of `halves` [tiles, HALVES, TILE, K], its first halves before
    the second ones, if there are any; the row is the sum of both times its scale.
    """
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, K_PAD)
    in_row = column < K
    await_producers(PDL)
    if GATED:
        source = x + row * (2 * K) + (column // 8 * 16 + column % 8 if PACKED else column)
        gate = tl.load(source, mask=in_row, other=0.0).to(tl.float32)
        other = tl.load(source + (8 if PACKED else K), mask=in_row, other=0.0).to(tl.float32)
        made = activated(gate, ACTIVATION) * other
        values = made.to(x.dtype.element_ty).to(tl.float32)
    else:
        values = tl.load(x + row * K + column, mask=in_row, other=0.0).to(tl.float32)
    if NORM == 1:
        values = tl.where(in_row, values - tl.sum(values, axis=0) / K, 0.0)
    if NORM > 0:
        values *= tl.rsqrt(tl.sum(values * values, axis=0) / K + epsilon)
    if gain is not None:
        values *= tl.load(gain + column, mask=in_row, other=0.0)
    # By their bits, of which those of NaN are the largest.
    largest = tl.max(tl.abs(values).to(tl.int32, bitcast=True), axis=0)
    scale = largest.to(tl.float32, bitcast=True) / _LARGEST
    scale = tl.where(scale < _TINY, _TINY, scale)
    values = tl.clamp(values / scale, -_LARGEST, _LARGEST)
    nearest = rounded(values)
    place = halves + (row // TILE * (HALVES * TILE) + row % TILE) * K + column
    tl.store(place, nearest.to(tl.float8e4nv), mask=in_row)
    if HALVES == 2:
        rest = rounded((values - nearest) / REST)
        tl.store(place + TILE * K, rest.to(tl.float8e4nv), mask=in_row)
    tl.store(row_scales + row, scale)


class RoundedRows(NamedTuple):
    """Rows of e4m3 [rows, K], and what each is to be multiplied by, float32 [rows]."""

    numbers: torch.Tensor
    scales: torch.Tensor


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
    rows, in_features = x.shape
    whole = -(-rows // tile_rows) * tile_rows
    made = _empty(x, linear.halves * whole, in_features)
    norm = linear.norm, linear.gain, linear.epsilon
    _launch(x, made, *norm, num_halves=linear.halves, tile_rows=tile_rows)
    return made


def rounded_rows(x: torch.Tensor) -> RoundedRows:
    """The rows of x [rows, K] as e4m3, one each."""
    made = _empty(x, *x.shape)
    _launch(x, made)
    return made


def rounded_gate(mapped: torch.Tensor, activation: int, *, is_packed: bool) -> RoundedRows:
    """`rounded_rows` of what `kernels.linear.gate.gate` makes of `mapped` [rows, 2 F]."""
    made = _empty(mapped, len(mapped), mapped.shape[1] // 2)
    _launch(mapped, made, is_gated=True, is_packed=is_packed, activation=activation)
    return made


def _empty(x: torch.Tensor, height: int, width: int) -> RoundedRows:
    """Room for the rows of x, and for those that fill a tile."""
    numbers = torch.empty(height, width, dtype=FP8, device=x.device)
    return RoundedRows(numbers, torch.empty(len(x), dtype=torch.float32, device=x.device))


def _warps(rows: int, columns: int) -> int:
    """Warps of a row: all that have room, where two rows share a multiprocessor. Where more do, one
    works while others wait."""
    share_it = MULTIPROCESSORS < rows <= 2 * MULTIPROCESSORS
    return min(32, max(8, columns // 128)) if share_it else 8


def _launch(
    x: torch.Tensor,
    made: RoundedRows,
    norm: int = NO_NORM,
    gain: torch.Tensor | None = None,
    epsilon: float = 0.0,
    *,
    num_halves: int = 1,
    tile_rows: int = 1,
    is_gated: bool = False,
    is_packed: bool = False,
    activation: int = NO_ACTIVATION,
) -> None:
    features = made.numbers.shape[1]
    halve_rows[(len(x),)](
        x,
        gain,
        *made,
        epsilon,
        K=features,
        K_PAD=padded(features),
        NORM=norm,
        TILE=tile_rows,
        HALVES=num_halves,
        GATED=is_gated,
        PACKED=is_packed,
        ACTIVATION=activation,
        num_warps=_warps(len(x), padded(features)),
        **launch_options(launches_early(x)),
    )
