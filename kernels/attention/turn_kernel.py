# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Heads of many tokens turned by their positions, in Triton, where they lie."""

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

_HEADS = 8


@triton.jit
def turn_rows(
    heads,
    positions,
    table,
    head_norm,
    epsilon,
    stride_row,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """HEADS of the first H heads of one row, each of D values, normed first where asked.

    A thread has both values of a pair, so that none is read after it was written.
    """
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF_PAD)[None, :]
    half: tl.constexpr = D // 2
    mask = (head < H) & (pair < half)
    await_producers(PDL)
    turn = table + tl.load(positions + row).to(tl.int64) * D + pair
    cosines = tl.load(turn, mask=pair < half, other=0.0)
    sines = tl.load(turn + half, mask=pair < half, other=0.0)
    place = heads + row * stride_row + head * D + pair
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=mask, other=0.0).to(tl.float32)
    if head_norm is not None:
        square = tl.sum(first * first + second * second, axis=1, keep_dims=True) / D
        rstd = tl.rsqrt(square + epsilon)
        weights = head_norm + head * D + pair
        first *= rstd * tl.load(weights, mask=mask, other=0.0).to(tl.float32)
        second *= rstd * tl.load(weights + half, mask=mask, other=0.0).to(tl.float32)
    kind = heads.dtype.element_ty
    tl.store(place, (first * cosines - second * sines).to(kind), mask=mask)
    tl.store(place + half, (second * cosines + first * sines).to(kind), mask=mask)


def launch_turn(
    heads: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    norm: torch.Tensor | None,
    epsilon: float,
) -> None:
    """`kernels.attention.rotation.HeadRotation.heads`, of heads [T, H, D] in place."""
    rows, count, head_dim = heads.shape
    if rows == 0:
        return
    turn_rows[(rows, triton.cdiv(count, _HEADS))](
        heads,
        positions,
        table,
        norm,
        epsilon,
        heads.stride(0),
        H=count,
        D=head_dim,
        HEADS=_HEADS,
        HALF_PAD=padded(head_dim // 2, 1),
        num_warps=4,
        **launch_options(launches_early(heads)),
    )
