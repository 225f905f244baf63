# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""`kernels.linear.norm` in Triton: one program a row, held in registers."""

import torch
import triton
import triton.language as tl

from kernels.tiles.launch import residual_norm_tile


@triton.jit
def add_norm_rows(
    x,
    change,
    weight,
    bias,
    total,
    normed,
    epsilon,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    RMS: tl.constexpr,
):
    """One row of `total` = x + change, rounded, and of `normed`, all [rows, E].

    RMS neither centres the row nor reads `bias`; `weight` may be None.
    """
    column = tl.arange(0, E_PAD)
    in_row = column < E
    # 32 bits would overflow at 1.4 million rows of 1536.
    place = tl.program_id(0).to(tl.int64) * E + column
    added = tl.load(x + place, mask=in_row, other=0.0).to(tl.float32)
    added += tl.load(change + place, mask=in_row, other=0.0).to(tl.float32)
    rounded = added.to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=in_row)
    values = rounded.to(tl.float32)
    if RMS:
        centred = values  # zeros beyond the row
    else:
        mean = tl.sum(values, axis=0) / E
        centred = tl.where(in_row, values - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / E + epsilon)
    if weight is None:
        scaled = centred * rstd
    else:
        scale = tl.load(weight + column, mask=in_row, other=0.0).to(tl.float32)
        scaled = centred * rstd * scale
    if not RMS:
        scaled += tl.load(bias + column, mask=in_row, other=0.0).to(tl.float32)
    tl.store(normed + place, scaled, mask=in_row)


def launch_add_norm(
    x: torch.Tensor,
    change: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    total: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """The sum and its norm into `total` and `normed`, both [T, E]; an RMS norm without `bias`."""
    rows, width = x.shape
    if rows == 0:
        return
    tile = residual_norm_tile(width)
    add_norm_rows[(rows,)](
        x,
        change,
        weight,
        weight if bias is None else bias,
        total,
        normed,
        epsilon,
        E=width,
        RMS=bias is None,
        **tile.constants,
        num_warps=tile.num_warps,
    )
