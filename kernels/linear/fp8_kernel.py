# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""`kernels.linear.fp8.dequantized` in Triton: each weight is read and written once."""

import torch
import triton
import triton.language as tl

from kernels.linear.vector import unpacked

_ROWS, _COLUMNS = 4, 1024


@triton.jit
def dequantized_rows(
    weight,
    scales,
    y,
    N: tl.constexpr,
    K: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """ROWS by COLUMNS of y [N, K], the weight times its scales [K / SCALED, N]."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < N)[:, None] & (k < K)[None, :]
    place = n.to(tl.int64)[:, None] * K + k[None, :]
    values = unpacked(tl.load(weight + place, mask=inside, other=0.0), tl.float32)
    if SCALED == K:
        values *= tl.load(scales + n, mask=n < N, other=0.0)[:, None]
    else:
        of_group = scales + (k // SCALED)[None, :] * N + n[:, None]
        values *= tl.load(of_group, mask=inside, other=0.0)
    tl.store(y + place, values.to(y.dtype.element_ty), mask=inside)


def launch_dequantized(weight: torch.Tensor, scales: torch.Tensor, y: torch.Tensor) -> None:
    """The weight [N, K] times its scales into y [N, K]; all contiguous."""
    rows, columns = weight.shape
    grid = triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS)
    dequantized_rows[grid](
        weight,
        scales,
        y,
        N=rows,
        K=columns,
        SCALED=columns // len(scales),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
