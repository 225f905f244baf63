"""Checkpoints of Llama-like families in e4m3, in the formats that are usual on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from decoder_checkpoints import make_reference
from safetensors.torch import save_file
from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "bos_token_id": 209,
    "eos_token_id": 210,
}
"""Whole blocks of columns; the rows of keys are half a block."""

_COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quantization_status": "compressed",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "block": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "per tensor": {"quant_method": "fp8", "activation_scheme": "static"},
} | {
    f"compressed {strategy}": {
        **_COMPRESSED,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": strategy,
                    "symmetric": True,
                    "block_structure": [128, 128] if strategy == "block" else None,
                },
                "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
            }
        },
    }
    for strategy in ("channel", "tensor", "block")
}
"""The quantization_config of each format."""


def save_fp8(
    directory: Path, model_type: str, kind: str, left_out: str = "nothing", **options: Any
) -> Any:
    """Write a model whose linear maps of blocks are e4m3, but those whose names have `left_out`.

    Returns transformers' model in float32, with the weights that e4m3 and scales stand for.
    """
    model = make_reference(model_type, **(SIZES | options))
    config = CONFIGS[kind]
    is_inverse = config["quant_method"] == "fp8" and "weight_block_size" in config
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.endswith("_proj.weight") or left_out in name:
                tensors[name] = weight.clone()
                continue
            values, scales, exact = _rounded(weight, kind)
            tensors[name] = values
            tensors[name + ("_scale_inv" if is_inverse else "_scale")] = scales
            if config.get("activation_scheme") == "static":
                tensors[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
            weight.copy_(exact)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    described = model.config.to_dict() | {"quantization_config": config}
    (directory / "config.json").write_text(json.dumps(described))
    return model


def _rounded(weight: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The e4m3, its scales as stored, and what both stand for."""
    rows, columns = weight.shape
    if "block" in kind:
        shape = -(-rows // 128), -(-columns // 128)
        scales = torch.empty(shape)
        for row in range(shape[0]):
            for column in range(shape[1]):
                block = weight[row * 128 :, column * 128 :][:128, :128]
                scales[row, column] = block.abs().max() / 448
        whole = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    elif "channel" in kind:
        scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
        whole = scales.float()
    else:
        scales = whole = (weight.abs().max() / 448).reshape(() if "compressed" in kind else 1)
    values = (weight / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values, scales, values.float() * whole
