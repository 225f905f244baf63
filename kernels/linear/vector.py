# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Fused linear maps of single rows: a matrix times a vector, without tensor cores.

For one or two rows a program holds its strip of weights in registers before it waits for its
producers; afterwards one row of x is all it reads. The norm's statistics come from that row.
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
from kernels.linear.folded import FoldedLinear
from kernels.tiles.launch import padded
from kernels.tiles.table import LinearTile


@triton.jit
def load_strip(weight, n, k, K: tl.constexpr):
    """Rows `n` of weight [N, K], zero beyond K: [BLOCK_N, K_PAD]."""
    return tl.load(weight + n[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)


@triton.jit
def times_row(strip, x, row, k, column_sum, epsilon, K: tl.constexpr, NORM: tl.constexpr):
    """The strip times one row of x [rows, K], normed first where asked: float32 [BLOCK_N]."""
    in_row = k < K
    values = tl.load(x + row * K + k, mask=in_row, other=0.0).to(tl.float32)
    result = tl.sum(strip.to(tl.float32) * values[None, :], axis=1)
    if NORM == 1:
        mean = tl.sum(values, axis=0) / K
        centred = tl.where(in_row, values - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / K + epsilon)
        result = rstd * (result - mean * column_sum)
    if NORM == 2:
        result *= tl.rsqrt(tl.sum(values * values, axis=0) / K + epsilon)
    return result


@triton.jit
def linear_row(
    x,
    weight,
    bias,
    column_sums,
    y,
    epsilon,
    N: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    NORM: tl.constexpr,
    EPILOGUE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """BLOCK_N values of one row of y [rows, N]. x [rows, K], weight [N, K]."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1)
    k = tl.arange(0, K_PAD)
    release_consumers(PDL)
    strip = load_strip(weight, n, k, K)
    shift = tl.load(bias + n)
    column_sum = shift
    if NORM == 1:
        column_sum = tl.load(column_sums + n)
    await_producers(PDL)
    if EPILOGUE == 2:
        residual = tl.load(y + row * N + n).to(tl.float32)
    result = times_row(strip, x, row, k, column_sum, epsilon, K, NORM) + shift
    if EPILOGUE == 1:
        u = 0.7978845608028654 * (result + 0.044715 * result * result * result)
        result = result / (1.0 + tl.exp(-2.0 * u))
    if EPILOGUE == 2:
        result += residual
    tl.store(y + row * N + n, result.to(y.dtype.element_ty))


def launch_rows(
    x: torch.Tensor, linear: FoldedLinear, y: torch.Tensor, tile: LinearTile, epilogue: int
) -> None:
    """`kernels.linear.projections.fused_linear` for a tile of one row; leaves no statistics."""
    rows, in_features = x.shape
    linear_row[(linear.out_features // tile.block_n, rows)](
        x,
        linear.weight,
        linear.bias,
        linear.bias if linear.column_sums is None else linear.column_sums,
        y,
        linear.epsilon,
        N=linear.out_features,
        K=in_features,
        K_PAD=padded(in_features),
        NORM=linear.norm,
        EPILOGUE=epilogue,
        BLOCK_N=tile.block_n,
        num_warps=tile.warps,
        **launch_options(launches_early(x)),
    )
