"""The arguments that every implementation of attention with a fused append takes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.attention.rotation import Rotation


class FusedArguments(NamedTuple):
    """As `kernels.attention.fused.fused_attention` describes them."""

    qkv: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    is_running: torch.Tensor
    out: torch.Tensor
    scale: float
    rotation: Rotation | None = None
    scales: torch.Tensor | None = None
