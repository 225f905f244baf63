"""The scales of a checkpoint in eight bits: of its weights, and of its KV cache.

A checkpoint has a scale for each row of a weight, for all of it or for each block. They are read as
one for each row, and blocks as one for each row of every block.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.errors import ConfigError, ModelError
from engine.models.family import Family
from engine.models.files import FLOAT_TYPES, StoredTensor
from engine.models.share import Copied, Share
from engine.models.spec import DecoderSpec
from engine.models.weights import StoredPart, cache_scales_of, is_linear, scales_of
from kernels.linear.fp8 import GROUP

_FP8_TYPE = "F8_E4M3"


def scales_beside(
    found: Mapping[str, StoredTensor], config: DecoderSpec, parameter: str, part: StoredPart
) -> StoredTensor | None:
    """The scales of a stored part that is e4m3; None of any other."""
    quantization, tensor = config.quantization, found[part.name]
    if quantization is None or not is_linear(parameter) or tensor.type_name != _FP8_TYPE:
        return None
    root = part.name.removesuffix("weight")
    names = [root + name for name in quantization.scale_names if root + name in found]
    if not names:
        raise ModelError(
            f"{tensor} has the type {tensor.type_name}, but no scales are beside it: "
            f"{root}{quantization.scale_names[0]} must be there."
        )
    scales = found[names[0]]
    possible = quantization.scale_shapes(*part.shape)
    if scales.shape not in possible or scales.type_name not in FLOAT_TYPES:
        raise ModelError(
            f"{scales} is {list(scales.shape)} of the type {scales.type_name}; scales of a weight "
            f"{list(part.shape)} must be {' or '.join(str(list(one)) for one in possible)} of "
            f"{', '.join(FLOAT_TYPES)}."
        )
    if quantization.in_blocks and part.shape[1] % GROUP:
        raise ModelError(
            f"{tensor} has {part.shape[1]} columns; a weight that is scaled in blocks must have a "
            f"multiple of {GROUP}."
        )
    return scales


def read_scales(scales: StoredTensor, part: StoredPart, in_blocks: bool) -> Tensor:
    """The scales of a stored part, float32 [G, rows] as `kernels.linear.fp8` has them."""
    stored = scales.read().float()
    if not stored.isfinite().all():
        raise ModelError(f"{scales} holds values that are not finite.")
    rows = part.shape[0]
    if in_blocks:
        return stored.repeat_interleave(GROUP, 0)[:rows].t()
    return stored.reshape(1, -1).expand(1, rows)


def require_whole_blocks(
    tensor: StoredTensor, parameter: str, part: StoredPart, share: Share
) -> None:
    """Refuse ranks that would share the columns of a block, which has one scale."""
    columns = part.shape[1]
    if share.cuts_columns(parameter) and columns // share.ranks % GROUP:
        raise ConfigError(
            f"tensor_parallel_size is {share.ranks}, but {tensor} has {columns} columns with a "
            f"scale for every {GROUP}: so many ranks would have parts of one scale's columns; use "
            "fewer ranks."
        )


def read_cache_scales(
    stored: Mapping[str, StoredTensor],
    family: Family,
    config: DecoderSpec,
    share: Share,
    device: torch.device,
) -> dict[str, Tensor]:
    """The scales [2, H_kv] of keys and values of each layer for which both are stored."""
    weights: dict[str, Tensor] = {}
    if config.quantization is None:
        return weights
    first = share.rank * config.num_kv_heads // share.ranks
    own = slice(first, first + share.spec(config).num_kv_heads)
    for layer in range(config.num_layers):
        found = [
            _cache_scale(next((stored[one] for one in names if one in stored), None), config)
            for names in family.names.cache_scale_names(layer)
        ]
        both = [scale[own] for scale in found if scale is not None]
        if len(both) == 2:
            weights[cache_scales_of(layer)] = torch.stack(both).to(device)
    return weights


def _cache_scale(tensor: StoredTensor | None, config: DecoderSpec) -> Tensor | None:
    """A stored scale as one of each head [H_kv]; None where there is none, or none that can be."""
    if tensor is None:
        return None
    scale = tensor.read().float().reshape(-1)
    is_possible = len(scale) in (1, config.num_kv_heads) and scale.isfinite().all()
    return scale.expand(config.num_kv_heads) if is_possible and (scale > 0).all() else None


def copied_scales(scales: Tensor | None, copied: Copied) -> Tensor | None:
    """Of the scales [G, rows] of a stored part, those of what is copied."""
    if scales is None:
        return None
    rows, *columns = copied.source
    if columns and len(scales) > 1:
        (of_columns,) = columns
        scales = scales[of_columns.start // GROUP : of_columns.stop // GROUP]
    return scales[:, rows]


def keep_scales(weights: dict[str, Tensor], parameter: str, copied: Copied, scales: Tensor) -> None:
    """Copy the scales of what was copied into those of the parameter."""
    name, weight = scales_of(parameter), weights[parameter]
    if name not in weights:
        shape = len(scales), len(weight)
        weights[name] = torch.zeros(shape, dtype=torch.float32, device=weight.device)
    weights[name][:, copied.target[0]] = scales.to(weight.device)
