# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Linear maps by the device's own library, where large ones are faster so inside the whole step.

What the kernels of `kernels.linear.projections` do beside the product then takes launches of its
own: one kernel here norms rows, one gates, and one leaves statistics. Of eight bits it multiplies
rows with a scale each by weights with a scale for each feature, for more rows than a step has.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.linear.epilogue import Epilogue, activate
from kernels.linear.folded import LAYER_NORM, FoldedLinear
from kernels.linear.gate_kernel import launch_gate, row_and_factor
from kernels.linear.row_statistics import store_tile_statistics
from kernels.tiles.launch import padded


@triton.jit
def rms_norm_rows(x, y, epsilon, E: tl.constexpr, E_PAD: tl.constexpr, PDL: tl.constexpr):
    """One row of y, that of x divided by the root of its mean square, both [rows, E]."""
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    await_producers(PDL)
    values, factor = row_and_factor(x, row, epsilon, E, E_PAD)
    column = tl.arange(0, E_PAD)
    tl.store(y + row * E + column, (values * factor).to(y.dtype.element_ty), mask=column < E)


@triton.jit
def statistics_rows(
    y, stats, N: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr, PDL: tl.constexpr
):
    """The statistics of one row of y [rows, N]: stats [rows, 2, TILES]."""
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    await_producers(PDL)
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
    epilogue: Epilogue,
    y_stats: torch.Tensor | None,
) -> None:
    """`kernels.linear.projections.fused_linear` by the library, for weights of 16 bits.

    It allocates what lies between its launches. W of the statistics must be a power of two; with
    `y_stats` of None there are none.
    """
    made, unnormed = _product(x, linear, y, epilogue)
    if epilogue.is_gated:
        launch_gate(
            made, y, epilogue.activation, is_packed=True, x=unnormed, epsilon=linear.epsilon
        )
    elif epilogue.activation:
        y.copy_(activate(y, epilogue.activation))
    if epilogue.is_added and y_stats is not None:
        tiles = y_stats.shape[2]
        statistics_rows[(len(y),)](
            y,
            y_stats,
            N=y.shape[1],
            TILES=tiles,
            TILES_PAD=padded(tiles, 1),
            num_warps=4,
            **launch_options(launches_early(y)),
        )


def rounded_product(
    rows: torch.Tensor,
    row_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
) -> torch.Tensor:
    """Rows [rows, K] with scales [rows] times a weight [N, K] with scales [1, N], both of e4m3.

    bfloat16 [rows, N]. Products are added in float32 now and then, not by the tensor cores alone,
    which keep fewer bits of sums.
    """
    by_row, dtype = row_scales[:, None], torch.bfloat16
    return torch._scaled_mm(rows, weight.t(), by_row, scales, out_dtype=dtype)


def _product(
    x: torch.Tensor, linear: FoldedLinear, y: torch.Tensor, epilogue: Epilogue
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The product, in y or, before a gate, in memory of its own; and x where the norm follows."""
    is_gated = epilogue.is_gated
    rows, in_features = x.shape
    early = launch_options(launches_early(x))
    whole_row = {"E": in_features, "E_PAD": padded(in_features), "num_warps": 8, **early}
    # The norm, a factor a row, may follow the product; but not where a bias comes between, nor
    # where values have too small a range for the product without it.
    norm_follows = is_gated and not linear.has_bias and x.dtype != torch.float16
    source, unnormed = x, x if linear.norm and norm_follows else None
    if linear.norm == LAYER_NORM:
        source = F.layer_norm(x, (in_features,), eps=linear.epsilon)
    elif linear.norm and not norm_follows:
        source = torch.empty_like(x)
        rms_norm_rows[(rows,)](x, source, linear.epsilon, **whole_row)
    weight = linear.weight.t()
    made = torch.empty(rows, linear.out_features, dtype=x.dtype, device=x.device) if is_gated else y
    if epilogue.is_added:
        torch.addmm(y, source, weight, out=y)
        if linear.has_bias:
            y.add_(linear.bias)
    elif linear.has_bias:
        torch.addmm(linear.bias.to(x.dtype), source, weight, out=made)
    else:
        torch.mm(source, weight, out=made)
    return made, unnormed
