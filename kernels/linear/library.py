# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Linear maps by the device's own library, where large ones are faster so inside the whole step.

What the kernels of `kernels.linear.projections` do beside the product then takes launches of its
own: torch norms the rows, one kernel here gates, and one leaves statistics.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.errors import KernelArgumentError
from kernels.linear.folded import LAYER_NORM, FoldedLinear
from kernels.linear.row_statistics import store_tile_statistics
from kernels.tiles.launch import padded


@triton.jit
def gated_rows(mapped, y, N: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK values of one row of y [rows, N / 2], of what a packed map made, `mapped` [rows, N]."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < N // 2
    place = mapped + row * N + n // 8 * 16 + n % 8
    gate = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(place + 8, mask=mask, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * other
    tl.store(y + row * (N // 2) + n, gated.to(y.dtype.element_ty), mask=mask)


@triton.jit
def statistics_rows(y, stats, N: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr):
    """The statistics of one row of y [rows, N]: stats [rows, 2, TILES]."""
    row = tl.program_id(0).to(tl.int64)
    W: tl.constexpr = N // TILES
    tile = tl.arange(0, TILES_PAD)
    in_row = tile < TILES
    place = y + row * N + tile[:, None] * W + tl.arange(0, W)[None, :]
    values = tl.load(place, mask=in_row[:, None], other=0.0).to(tl.float32)
    # Tiles stand where a producer of all tiles has its rows.
    store_tile_statistics(stats + row * (2 * TILES), tile * 0, in_row, tile, values, TILES, W)


def launch_library(
    x: torch.Tensor,
    linear: FoldedLinear,
    y: torch.Tensor,
    *,
    is_gated: bool,
    is_residual: bool,
    y_stats: torch.Tensor | None,
) -> None:
    """`kernels.linear.projections.fused_linear` by the library: without LayerNorm and GELU.

    It allocates what lies between its launches. W of the statistics must be a power of two.
    """
    if linear.norm == LAYER_NORM:
        raise KernelArgumentError("a library's tile must not be given maps behind a LayerNorm")
    rows, in_features = x.shape
    if linear.norm:
        x = F.rms_norm(x, (in_features,), None, linear.epsilon)
    weight = linear.weight.t()
    made = torch.empty(rows, linear.out_features, dtype=x.dtype, device=x.device) if is_gated else y
    if is_residual:
        torch.addmm(y, x, weight, out=y)
        if linear.has_bias:
            y.add_(linear.bias)
    elif linear.has_bias:
        torch.addmm(linear.bias.to(x.dtype), x, weight, out=made)
    else:
        torch.mm(x, weight, out=made)
    if is_gated:
        block = min(1024, padded(y.shape[1]))
        gated_rows[(rows, triton.cdiv(y.shape[1], block))](
            made, y, N=linear.out_features, BLOCK=block, num_warps=4
        )
    if y_stats is not None:
        tiles = y_stats.shape[2]
        statistics_rows[(rows,)](
            y, y_stats, N=y.shape[1], TILES=tiles, TILES_PAD=padded(tiles, 1), num_warps=4
        )
