"""Weights in eight bits, e4m3, and the scales that they are multiplied by.

A weight [N, K] has scales [G, N], float32: that of row n and column k is scales[k // (K / G), n].
G is 1 where a whole row shares its scale, which then follows the product; otherwise rows are cut
into groups of `GROUP` columns, whose products are scaled one by one before they are added.
"""

from __future__ import annotations

import torch

from kernels.backend import capability, device_of, uses_triton
from kernels.tiles.tile import FP8_GROUP

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
GROUP = FP8_GROUP
"""As many products are added at once."""
_ALIGNED = 16
"""What the sizes of a weight are multiples of that the library multiplies in eight bits."""


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [N, K] rounded to e4m3, and its scales [1, N].

    The largest number of each row becomes the largest of e4m3; a row of zeros keeps its zeros.
    """
    exact = weight.float()
    scales = (exact.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    values = (exact / scales[:, None]).clamp(-LARGEST, LARGEST)
    return values.to(FP8), scales[None]


def dequantized(weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The weight [N, K] times its scales, rounded once to `dtype`."""
    if uses_triton(weight) and dtype != torch.float64:
        from kernels.linear.fp8_kernel import launch_dequantized

        made = torch.empty(weight.shape, dtype=dtype, device=weight.device)
        with device_of(weight):
            launch_dequantized(weight.contiguous(), scales.contiguous(), made)
        return made
    plain = weight.to(dtype)
    plain.unflatten(1, (len(scales), -1)).mul_(scales.t()[:, :, None])
    return plain


def multiplies_rounded(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether the library multiplies rows like x [rows, K], rounded to e4m3, by such a weight.

    On Hopper it does, into bfloat16, where each row of the weight [N, K] has one scale.
    """
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and capability(x.device) == (9, 0)
        and len(scales) == 1
        and not (weight.shape[0] % _ALIGNED or weight.shape[1] % _ALIGNED)
    )
