"""Keys and values in eight bits: e4m3, with a scale for each KV head, in torch.

A cache of eight bits comes with scales [2, H_kv], float32: row 0 of keys, row 1 of values. What
stands in the cache times its head's scale is the key or the value. Every token is attended to as it
is stored, also by itself, so that nothing depends on when it was stored.
"""

from __future__ import annotations

import torch

from kernels.linear.fp8 import FP8, LARGEST

ROOM = 4.0
"""Values may be so many times as large as the largest that a scale was measured with. e4m3 is a
floating type, so that room costs no precision."""


def scales_for(largest: torch.Tensor) -> torch.Tensor:
    """Scales for heads whose magnitudes are `largest`: powers of two, which round nothing.

    With room for larger ones. A head of zeros, or of none but infinite values, has the scale 1.
    """
    exact = largest.float() * (ROOM / LARGEST)
    powers = torch.exp2(exact.log2().ceil().clamp(-100, 100))
    return torch.where(exact.isfinite() & (exact > 0), powers, 1.0)


def rounded(heads: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Keys or values [B, H_kv, D] as the cache has them; `scales` [H_kv].

    Values beyond the range of e4m3 become its largest.
    """
    return (heads.float() / scales[:, None]).clamp(-LARGEST, LARGEST).to(FP8)


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """The same cache; one of eight bits as bytes, as torch moves e4m3 in few of its operations."""
    return cache.view(torch.uint8) if cache.dtype == FP8 else cache
