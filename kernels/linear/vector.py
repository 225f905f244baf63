# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Fused linear maps of single rows: a matrix times a vector, without tensor cores.

For one or two rows a program holds its strip of weights in registers before it waits for its
producers; afterwards one row of x is all it reads. Where rows of weights are too long for that, it
holds their first chunk, and the others follow. The norm's statistics come from that row.
"""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    is_hopper,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.linear.epilogue import Epilogue
from kernels.linear.epilogue_kernel import activated
from kernels.linear.folded import FoldedLinear
from kernels.tiles.launch import padded
from kernels.tiles.tile import LinearTile


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
    return _normed(result, values, in_row, column_sum, epsilon, K, NORM)


@triton.jit
def times_long_row(
    strip, weight, n, x, row, k, column_sum, epsilon,
    K: tl.constexpr, K_PAD: tl.constexpr, NORM: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """As `times_row`, of rows `n` of weight of which the strip is the first CHUNK columns."""
    products = strip.to(tl.float32) * tl.load(x + row * K + k).to(tl.float32)[None, :]
    for start in tl.range(CHUNK, K, CHUNK, num_stages=STAGES):
        values = tl.load(x + row * K + start + k).to(tl.float32)
        strip = tl.load(weight + n[:, None] * K + (start + k)[None, :])
        products += strip.to(tl.float32) * values[None, :]
    result = tl.sum(products, axis=1)
    if NORM > 0:
        whole = tl.arange(0, K_PAD)
        values = tl.load(x + row * K + whole, mask=whole < K, other=0.0).to(tl.float32)
        result = _normed(result, values, whole < K, column_sum, epsilon, K, NORM)
    return result


@triton.jit
def unpacked(weights, TYPE: tl.constexpr):
    """Weights of e4m3 as numbers of another type, which has all of them.

    By way of types to which Hopper converts pairs at once: straight to bfloat16 it converts single
    numbers, a quarter as many at a time.
    """
    return weights.to(tl.float16).to(tl.float32).to(TYPE)


@triton.jit
def times_scaled_row(
    strip, weight, scales, scale, gain, n, x, row, k, column_sum, epsilon,
    N: tl.constexpr, K: tl.constexpr, K_PAD: tl.constexpr, SCALED: tl.constexpr,
    NORM: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `times_long_row`, of a weight of e4m3; the strip may be of whole rows, too.

    `scale` is that of each of the rows `n` where each has one, SCALED of K.
    """
    in_row = k < K
    values = _multiplied(x + row * K, gain, k, in_row)
    products = unpacked(strip, tl.float32) * values[None, :]
    if SCALED < K:
        result = _scaled_sums(products, scales, n, 0, N, K, SCALED)
    for first in tl.range(CHUNK, K, CHUNK, num_stages=STAGES):
        values = _multiplied(x + row * K, gain, first + k, in_row)
        strip = tl.load(weight + n[:, None] * K + (first + k)[None, :])
        others = unpacked(strip, tl.float32) * values[None, :]
        if SCALED < K:
            result += _scaled_sums(others, scales, n, first, N, K, SCALED)
        else:
            products += others
    if SCALED == K:
        result = scale * tl.sum(products, axis=1)
    if NORM > 0:
        whole = tl.arange(0, K_PAD)
        values = tl.load(x + row * K + whole, mask=whole < K, other=0.0).to(tl.float32)
        result = _normed(result, values, whole < K, column_sum, epsilon, K, NORM)
    return result


@triton.jit
def _multiplied(x, gain, k, in_row):
    """Columns `k` of a row, zero where they are not in it, times the gain where there is one."""
    values = tl.load(x + k, mask=in_row, other=0.0).to(tl.float32)
    if gain is not None:
        values *= tl.load(gain + k, mask=in_row, other=0.0)
    return values


@triton.jit
def _scaled_sums(
    products, scales, n, first, N: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr
):
    """The sums of products [BLOCK_N, CHUNK], from column `first` on, by groups that are scaled."""
    ROWS: tl.constexpr = products.shape[0]
    GROUPS: tl.constexpr = products.shape[1] // SCALED
    group = first // SCALED + tl.arange(0, GROUPS)
    place = scales + group[None, :] * N + n[:, None]
    scale = tl.load(place, mask=(group < K // SCALED)[None, :], other=0.0)
    sums = tl.sum(tl.reshape(products, (ROWS, GROUPS, SCALED)), axis=2)
    return tl.sum(scale * sums, axis=1)


@triton.jit
def _normed(result, values, in_row, column_sum, epsilon, K: tl.constexpr, NORM: tl.constexpr):
    """The product with a row of `values`, zero beyond K, as it is with the row normed."""
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
    scales,
    gain,
    N: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    SCALED: tl.constexpr,
    NORM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row of x [rows, K] times BLOCK_N rows of weight [N, K]: as many values of y, or half."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1)
    k = tl.arange(0, CHUNK)
    if GATED:
        # By turns a feature of the gate and the one that it gates.
        n = n // 16 * 16 + n % 16 // 2 + n % 2 * 8
    release_consumers(PDL)
    strip = load_strip(weight, n, k, K)
    shift = tl.load(bias + n)
    column_sum = shift
    if NORM == 1:
        column_sum = tl.load(column_sums + n)
    scale = shift
    if SCALED == K:
        scale = tl.load(scales + n)
    await_producers(PDL)
    if ADDED:
        residual = tl.load(y + row * N + n).to(tl.float32)
    if scales is not None:
        result = times_scaled_row(
            strip, weight, scales, scale, gain, n, x, row, k, column_sum, epsilon,
            N, K, K_PAD, SCALED, NORM, CHUNK, STAGES,
        )  # fmt: skip
    elif CHUNK < K:
        result = times_long_row(
            strip, weight, n, x, row, k, column_sum, epsilon, K, K_PAD, NORM, CHUNK, STAGES
        )
    else:
        result = times_row(strip, x, row, k, column_sum, epsilon, K, NORM)
    result += shift
    if GATED:
        gate, other = tl.split(tl.reshape(result, (BLOCK_N // 2, 2)))
        out_n = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        result = activated(gate, ACTIVATION) * other
        tl.store(y + row * (N // 2) + out_n, result.to(y.dtype.element_ty))
    else:
        result = activated(result, ACTIVATION)
        if ADDED:
            result += residual
        tl.store(y + row * N + n, result.to(y.dtype.element_ty))


def chunk_constants(tile: LinearTile, in_features: int) -> dict[str, int]:
    """The constants by which a program of a tile of one row takes rows of weights."""
    chunk = tile.chunk(in_features)
    if chunk is not None:
        return {"CHUNK": chunk, "STAGES": tile.stages}
    return {"CHUNK": padded(in_features), "STAGES": 1}


def launch_rows(
    x: torch.Tensor, linear: FoldedLinear, y: torch.Tensor, tile: LinearTile, epilogue: Epilogue
) -> None:
    """`kernels.linear.projections.fused_linear` for a tile of one row; leaves no statistics."""
    if linear.scales is not None and is_hopper(x):
        from kernels.linear.hopper.vector import launch_row_stream, row_stream_serves

        if row_stream_serves(x, linear):
            launch_row_stream(x, linear, y, epilogue)
            return
    rows, in_features = x.shape
    linear_row[(linear.out_features // tile.block_n, rows)](
        x,
        linear.weight,
        linear.bias,
        linear.bias if linear.column_sums is None else linear.column_sums,
        y,
        linear.epsilon,
        linear.scales,
        linear.gain,
        N=linear.out_features,
        K=in_features,
        K_PAD=padded(in_features),
        SCALED=linear.scaled_columns,
        NORM=linear.norm,
        **epilogue.constants(),
        **chunk_constants(tile, in_features),
        BLOCK_N=tile.block_n,
        num_warps=tile.warps,
        **launch_options(launches_early(x)),
    )
