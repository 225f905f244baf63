"""Checkpoints of the Llama-like families as transformers writes them, with output that varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TINY: dict[str, Any] = {
    "vocab_size": 211,
    "max_position_embeddings": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 209,
    "eos_token_id": 210,
}
"""Options of transformers' configs for a model that takes no time."""


def make_reference(model_type: str, seed: int = 0, **options: Any) -> Any:
    """A transformers model in float32 whose output varies with every parameter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **(TINY | options))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                is_sharp = "q_proj" in name or "k_proj" in name
                gain = 2.0 if is_sharp else 0.5 if "embed_tokens" in name else 1.5
                parameter.copy_(noise * gain * parameter.shape[1] ** -0.5)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.copy_(2.0 + 0.3 * noise)
            elif name.endswith("norm.weight"):
                parameter.copy_((8.0 if name == "model.norm.weight" else 1.0) * (1 + 0.1 * noise))
            else:
                parameter.copy_(0.3 * noise)
    return model


def save_reference(
    directory: Path, model_type: str, seed: int = 0, shard: str = "5GB", **options: Any
) -> Any:
    """Write such a model into `directory` with save_pretrained, and return it."""
    model = make_reference(model_type, seed, **options)
    model.save_pretrained(directory, max_shard_size=shard)
    return model
