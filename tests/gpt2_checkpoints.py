"""GPT-2 checkpoints as transformers writes them, and attention simple enough to be believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.decoder import Decoder

TINY = {
    "vocab_size": 211,
    "n_positions": 96,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 210,
    "eos_token_id": 210,
}
"""Options of transformers' GPT2Config for a model that takes no time."""


def make_reference(seed: int = 0, **options: Any) -> Any:
    """A transformers GPT2LMHeadModel in float32 whose output varies with every parameter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**(TINY | options))
    config._attn_implementation = "eager"  # the one implementation that honours every option
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                # Both Conv1D [in, out] and the embeddings [rows, E] divide by the inputs' number.
                fan_in = parameter.shape[0] if "c_" in name else parameter.shape[1]
                gain = 2.0 if "c_attn" in name else 0.5 if "wte" in name else 1.0
                parameter.copy_(noise * gain * fan_in**-0.5)
            elif "ln_" in name and name.endswith("weight"):
                parameter.copy_((8.0 if "ln_f" in name else 1.0) * (1.0 + 0.1 * noise))
            else:
                parameter.copy_(0.1 * noise)
    return model


def save_reference(directory: Path, seed: int = 0, shard: str = "5GB", **options: Any) -> Any:
    """Write such a model into `directory` with save_pretrained, and return it."""
    model = make_reference(seed, **options)
    model.save_pretrained(directory, max_shard_size=shard)
    return model


def dense_causal_attention(model: Decoder) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """`attend` for one whole sequence from position 0, by the definition."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (one.repeat_interleave(group, dim=1) for one in (k, v))
        scores = torch.einsum("thd,chd->htc", q, k) * model.config.attention_scale(layer)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
        window = model.config.window(layer)
        if window is not None:
            hidden |= torch.ones_like(hidden).tril(-window)
        weights = scores.float().masked_fill(hidden, -torch.inf).softmax(-1).to(v.dtype)
        return torch.einsum("htc,chd->thd", weights, v)

    return attend


def logits_of(model: Decoder, token_ids: Tensor) -> Tensor:
    """Logits [T, V] after each token of one sequence [T]."""
    positions = torch.arange(len(token_ids), device=token_ids.device)
    return model.logits(model.forward(token_ids, positions, dense_causal_attention(model)))


def greedy_continuation(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that greedy decoding adds to the prompt, each from the whole sequence."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(
            int(logits_of(model, torch.tensor(token_ids, device=model.device))[-1].argmax())
        )
    return token_ids[len(prompt) :]
