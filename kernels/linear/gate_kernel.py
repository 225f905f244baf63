# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""`kernels.linear.gate` in Triton, where rows may be normed first, after the product."""

import torch
import triton
import triton.language as tl

from kernels.dependent_launch import (
    await_producers,
    launch_options,
    launches_early,
    release_consumers,
)
from kernels.linear.epilogue_kernel import activated
from kernels.tiles.launch import padded

_MOST_BLOCK = 4096


@triton.jit
def row_and_factor(x, row, epsilon, E: tl.constexpr, E_PAD: tl.constexpr):
    """One row of x [rows, E], float32 and zero beyond E, and what its RMS norm multiplies it by."""
    column = tl.arange(0, E_PAD)
    values = tl.load(x + row * E + column, mask=column < E, other=0.0).to(tl.float32)
    return values, tl.rsqrt(tl.sum(values * values, axis=0) / E + epsilon)


@triton.jit
def gated_rows(
    mapped,
    x,
    y,
    epsilon,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    PACKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """BLOCK values of one row of y [rows, N / 2], of what a map made, `mapped` [rows, N].

    It made them of x [rows, E], whose RMS norm follows here; of None where none is to follow.
    """
    release_consumers(PDL)
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < N // 2
    place = mapped + row * N + (n // 8 * 16 + n % 8 if PACKED else n)
    await_producers(PDL)
    gate = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(place + (8 if PACKED else N // 2), mask=mask, other=0.0).to(tl.float32)
    if x is not None:
        # What is gated is asked for before the row's squares are summed.
        tl.debug_barrier()
        _, factor = row_and_factor(x, row, epsilon, E, E_PAD)
        gate *= factor
        other *= factor
    made = activated(gate, ACTIVATION) * other
    tl.store(y + row * (N // 2) + n, made.to(y.dtype.element_ty), mask=mask)


def launch_gate(
    mapped: torch.Tensor,
    y: torch.Tensor,
    activation: int,
    *,
    is_packed: bool,
    x: torch.Tensor | None = None,
    epsilon: float = 0.0,
) -> None:
    """Gate `mapped` [T, 2 F] into y [T, F], after the RMS norm of x [T, E], where one is given."""
    rows, features = mapped.shape
    if rows == 0:
        return
    embed = 1 if x is None else x.shape[1]
    block = min(_MOST_BLOCK, padded(features // 2))
    gated_rows[(rows, triton.cdiv(features // 2, block))](
        mapped,
        x,
        y,
        epsilon,
        N=features,
        BLOCK=block,
        E=embed,
        E_PAD=padded(embed),
        PACKED=is_packed,
        ACTIVATION=activation,
        num_warps=8,
        **launch_options(launches_early(mapped)),
    )
