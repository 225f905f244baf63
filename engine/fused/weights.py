"""A GPT-2's weights as the fused decode kernels take them, and which models can have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kv.memory import KVCache
from engine.models.gpt2 import GPT2, LayerNorm, Linear
from kernels.linear.folded import FoldedLinear, fold_linear
from kernels.tiles.table import HEAD_PART

_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")


def can_fuse(model: GPT2) -> bool:
    """Whether the fused kernels run this model: half precision on CUDA, GPT-2's own activation.

    Widths must be multiples of 64, as those of every published GPT-2 are.
    """
    config = model.config
    return (
        model.device.type == "cuda"
        and model.dtype in (torch.float16, torch.bfloat16)
        and config.activation in _ACTIVATIONS
        and config.hidden_size % 64 == 0
        and config.inner_size % 64 == 0
    )


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """One transformer block's linear maps, the LayerNorms folded in, and its part of the cache."""

    attention_in: FoldedLinear
    attention_out: FoldedLinear
    feed_forward_in: FoldedLinear
    feed_forward_out: FoldedLinear
    keys: torch.Tensor
    values: torch.Tensor
    scale: float


def fused_blocks(model: GPT2, cache: KVCache) -> list[FusedBlock]:
    """The model's blocks; weights that follow a LayerNorm are copied, the others shared."""
    return [
        FusedBlock(
            attention_in=_fold(block.attention_in, block.ln_1),
            attention_out=_fold(block.attention_out),
            feed_forward_in=_fold(block.feed_forward_in, block.ln_2),
            feed_forward_out=_fold(block.feed_forward_out),
            keys=cache.keys[layer],
            values=cache.values[layer],
            scale=model.config.attention_scale(layer),
        )
        for layer, block in enumerate(model.blocks)
    ]


def fused_head(model: GPT2) -> FoldedLinear:
    """The head with the final LayerNorm, padded with rows of zeros so that every tile is whole."""
    norm = model.final_norm
    missing = -model.head.shape[0] % HEAD_PART
    weight = F.pad(model.head, (0, 0, 0, missing)) if missing else model.head
    return fold_linear(weight, None, norm.weight, norm.bias, norm.epsilon)


def _fold(linear: Linear, norm: LayerNorm | None = None) -> FoldedLinear:
    if norm is None:
        return fold_linear(linear.weight, linear.bias)
    return fold_linear(linear.weight, linear.bias, norm.weight, norm.bias, norm.epsilon)
