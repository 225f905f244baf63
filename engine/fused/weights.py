"""A model's weights as the fused decode kernels take them, and which models can have them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from engine.kv.memory import KVCache
from engine.models.activations import KERNEL_ACTIVATIONS, activation_function
from engine.models.decoder import Decoder
from engine.models.layers import LayerNorm, Linear, Norm, QuantizedLinear, RMSNorm
from engine.models.spec import DecoderSpec
from kernels.attention.rotation import Rotation
from kernels.linear.epilogue import Epilogue
from kernels.linear.folded import FoldedLinear, fold_fp8, fold_linear, fold_rms_norm
from kernels.tiles.table import MOST_HEAD_DIM
from kernels.tiles.tile import HEAD_PART, ROLES, StepShapes


def can_fuse(model: Decoder) -> bool:
    """Whether the fused kernels run this model: half precision on CUDA, parts they know."""
    is_half = model.dtype in (torch.float16, torch.bfloat16)
    return model.device.type == "cuda" and is_half and has_fused_parts(model.config)


def has_fused_parts(config: DecoderSpec) -> bool:
    """Whether there are fused kernels for every part, in whichever combination.

    The activation must be one that kernels have, and all widths multiples of 64. Fused kernels have
    no window, one kind of rotary positions for all layers, no norm before the residual is added,
    and no factor on embeddings.
    """
    if not config.is_plain:
        return False
    shapes = step_shapes(config)
    widths = (*shapes.attention_in, *shapes.attention_out, *shapes.feed_forward_out)
    if any(width % 64 for width in widths) or config.head_dim > MOST_HEAD_DIM:
        return False
    return activation_function(config.activation) in KERNEL_ACTIVATIONS


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """One transformer block's linear maps, the norms folded in, and its part of the cache.

    `scales` are those of a cache of eight bits.
    """

    attention_in: FoldedLinear
    attention_out: FoldedLinear
    feed_forward_in: FoldedLinear
    feed_forward_out: FoldedLinear
    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None
    scale: float
    rotation: Rotation | None

    @property
    def quantized(self) -> list[FoldedLinear]:
        """The maps of eight bits."""
        maps: list[FoldedLinear] = [getattr(self, role) for role in ROLES[:-1]]
        return [one for one in maps if one.scales is not None]


def fused_blocks(model: Decoder, cache: KVCache) -> list[FusedBlock]:
    """The model's blocks; weights that follow a LayerNorm are copied, the others shared.

    Those of eight bits are always shared.

    RMS norms are folded into the model itself, and its gates packed (`Decoder.fold_norms`).
    """
    model.fold_norms()
    return [
        FusedBlock(
            attention_in=_fold(block.attention.into, block.attention.norm),
            attention_out=_fold(block.attention.out),
            feed_forward_in=_fold(block.feed_forward.into, block.feed_forward.norm),
            feed_forward_out=_fold(block.feed_forward.out),
            keys=keys,
            values=values,
            scales=scales,
            scale=model.config.attention_scale(layer),
            rotation=None
            if model.turns is None
            else Rotation(model.turns, block.attention.head_norm, model.config.norm_epsilon),
        )
        for layer, block in enumerate(model.blocks)
        for keys, values, scales in (cache.layer(layer),)
    ]


def fused_head(model: Decoder) -> FoldedLinear:
    """The head with the final norm, padded with rows of zeros so that every tile is whole.

    A copy, unless it is whole already and no embedding that a norm must leave alone.
    """
    head = model.head.weight
    missing = -head.shape[0] % HEAD_PART
    weight = F.pad(head, (0, 0, 0, missing)) if missing else head
    return _fold(Linear(weight, None), model.final_norm)


def epilogue_of(config: DecoderSpec) -> Epilogue:
    """What follows the first map of a feed-forward layer."""
    activation = KERNEL_ACTIVATIONS[activation_function(config.activation)]
    return Epilogue(activation, is_gated=config.is_gated)


def folding_bytes(config: DecoderSpec, dtype: torch.dtype) -> int:
    """What `fused_blocks` and `fused_head` hold at most beside the model, also while they fold.

    Copies of the maps behind a LayerNorm, and of a head that is the embedding or not whole; and the
    largest map once more, in float64 and twice where a LayerNorm is folded in.
    """
    shapes = step_shapes(config)
    sizes: list[int] = [math.prod(getattr(shapes, role)) for role in ROLES]
    copied = 0
    if config.tied_head or config.num_scored != shapes.head[0]:
        copied += math.prod(shapes.head)
    if config.norm == "rms":
        return dtype.itemsize * (copied + max(sizes))
    copied += config.num_layers * math.prod(shapes.attention_in)
    copied += config.num_layers * math.prod(shapes.feed_forward_in)
    return dtype.itemsize * copied + 2 * torch.float64.itemsize * max(sizes)


def step_shapes(config: DecoderSpec) -> StepShapes:
    """The maps of a step of such a model."""
    embed, inner = config.hidden_size, config.inner_size
    attended = config.num_heads * config.head_dim
    keys_and_values = 2 * config.num_kv_heads * config.head_dim
    head_rows = -(-config.num_scored // HEAD_PART) * HEAD_PART
    return StepShapes(
        attention_in=(attended + keys_and_values, embed),
        attention_out=(embed, attended),
        feed_forward_in=(2 * inner if config.is_gated else inner, embed),
        feed_forward_out=(embed, inner),
        head=(head_rows, embed),
    )


def _fold(linear: Linear, norm: Norm | None = None) -> FoldedLinear:
    if isinstance(linear, QuantizedLinear):
        # None of its gain is in the weights: `Norm.folded_into` leaves it before such maps.
        shift = norm.bias if isinstance(norm, LayerNorm) else None
        of_norm = () if norm is None else (norm.weight, shift, norm.epsilon)
        folded = fold_fp8(linear.weight, linear.scales, linear.bias, *of_norm)
        return replace(folded, halves=1) if linear.rounds_rows else folded
    if norm is None:
        return fold_linear(linear.weight, linear.bias)
    if isinstance(norm, RMSNorm):
        return fold_rms_norm(linear.weight, linear.bias, norm.weight, norm.epsilon)
    return fold_linear(linear.weight, linear.bias, norm.weight, norm.bias, norm.epsilon)
