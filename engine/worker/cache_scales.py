"""By how much keys and values are scaled where the cache keeps them in eight bits."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.models.decoder import Decoder
from kernels.attention.eight_bits import scales_for

_MOST_TOKENS = 512


def cache_scales(model: Decoder) -> torch.Tensor:
    """Scales [num_layers, 2, H_kv], float32: the checkpoint's, or measured where it has none.

    Measured are the largest keys and values of each head in one prefill of random tokens, the same
    in every engine, through the model in its own dtype. Where ranks have a part of the model each,
    all must call it, and each measures its own heads.
    """
    if model.cache_scales is not None:
        return model.cache_scales
    config, device = model.config, model.device
    # Within the window every layer attends to all of them.
    count = min(_MOST_TOKENS, config.max_positions, config.sliding_window or _MOST_TOKENS)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(config.vocab_size, (count,), generator=generator).to(device)
    largest = torch.empty(config.num_layers, 2, config.num_kv_heads, device=device)

    def attend(
        layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        for place, heads in enumerate((key, value)):
            largest[layer, place] = heads.abs().amax((0, 2))
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            is_causal=True,
            scale=config.attention_scale(layer),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return attended[0].transpose(0, 1)

    model.forward(token_ids, torch.arange(count, device=device), attend)
    return scales_for(largest)
