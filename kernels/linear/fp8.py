"""Weights in eight bits, e4m3, and the scales that they are multiplied by. Torch only.

A weight [N, K] has scales [G, N], float32: that of row n and column k is scales[k // (K / G), n].
G is 1 where a whole row shares its scale, which then follows the product; otherwise rows are cut
into groups of `GROUP` columns, whose products are scaled one by one before they are added.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
GROUP = 128
"""Columns that share a scale where not all of a row do: as many products are added at once."""


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
    plain = weight.to(dtype)
    plain.unflatten(1, (len(scales), -1)).mul_(scales.t()[:, :, None])
    return plain
