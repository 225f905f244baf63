"""The engine's weights in transformers' GPT-2, so that peers decode the same model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from asv_bench.errors import MeasurementFailed
from asv_bench.memory.floor import GPT2Shape


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A `GPT2LMHeadModel` on its device, its sizes, its weights' type, transformers' version."""

    model: Any
    shape: GPT2Shape
    dtype: str
    transformers: str


def load_peer_model(name: str, *, device: str, dtype: str) -> PeerModel:
    """Load a model into transformers as the engine would load it.

    Raises MeasurementFailed if transformers cannot be imported, or does not take the weights one
    for one, or the model is no GPT-2.

    `name` and `dtype` are as `EngineConfig` takes them.
    """
    import torch

    from engine.models.registry import RANDOM_PREFIX

    transformers = _import_transformers()
    wanted = None if dtype == "auto" else getattr(torch, dtype)
    place = torch.device(device)
    if name.startswith(RANDOM_PREFIX):
        model = _random_model(name, place, wanted)
    else:
        _require_gpt2(name, transformers.AutoConfig.from_pretrained(name).model_type)
        # The CPU's default is the engine's, for the reason given there: half precision is slow.
        wanted = wanted or (torch.float32 if place.type == "cpu" else "auto")
        model = transformers.GPT2LMHeadModel.from_pretrained(name, dtype=wanted).to(place)
    model.eval()
    # Only its length ends a sequence; padding on the left is masked.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    config = model.config
    shape = GPT2Shape(
        vocab_size=config.vocab_size,
        num_layers=config.n_layer,
        num_heads=config.n_head,
        num_kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        hidden_size=config.n_embd,
        inner_size=config.n_inner or 4 * config.n_embd,
    )
    return PeerModel(
        model, shape, str(model.dtype).removeprefix("torch."), transformers.__version__
    )


def _require_gpt2(name: str, family: str) -> None:
    if family != "gpt2":
        raise MeasurementFailed(
            f"{name} is of the family {family}; peers decode GPT-2 only, such as random:gpt2."
        )


def _import_transformers() -> Any:
    from kernels.namesake import namesake_version

    try:
        import transformers

        # transformers imports lazily: a broken import shows at the first use of a name.
        transformers.GPT2LMHeadModel  # noqa: B018
    except (ImportError, RuntimeError) as error:
        version = namesake_version()
        namesake = (
            f" The Hugging Face package 'kernels' {version} is installed beside kvtrail's own of "
            f"that name, which may be why: `pip uninstall kernels`."
            if version
            else " `pip install transformers` provides it."
        )
        raise MeasurementFailed(
            f"transformers cannot be imported by {sys.executable}: {error}.{namesake}"
        ) from error
    return transformers


def _random_model(name: str, device: Any, dtype: Any) -> Any:
    """A built-in model with the weights that the engine draws for seed 0 and this dtype."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from engine.models.gpt2 import GPT2
    from engine.models.random_weights import random_weights
    from engine.models.registry import RANDOM_CONFIGS, RANDOM_PREFIX, default_dtype, load_model
    from engine.models.weights import HEAD_NAME

    shape = name.removeprefix(RANDOM_PREFIX)
    if shape not in RANDOM_CONFIGS:
        load_model(name, device=device)  # refuses, with the engine's own sentence
    ours = RANDOM_CONFIGS[shape]
    _require_gpt2(name, ours.family)
    dtype = dtype or default_dtype(ours, device)
    config = GPT2Config(
        vocab_size=ours.vocab_size,
        n_positions=ours.max_positions,
        n_embd=ours.hidden_size,
        n_layer=ours.num_layers,
        n_head=ours.num_heads,
        n_inner=ours.inner_size,
        activation_function=ours.activation,
        layer_norm_epsilon=ours.norm_epsilon,
        tie_word_embeddings=ours.tied_head,
        scale_attn_weights=ours.scale_by_head_dim,
        scale_attn_by_inverse_layer_idx=ours.scale_by_layer,
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = random_weights(ours, seed=0, device=device, dtype=dtype)
    model = GPT2LMHeadModel(config).to(device=device, dtype=dtype)
    parts = GPT2.names.parts(ours, {name: tuple(one.shape) for name, one in weights.items()})
    named = {
        part.name if part.name == HEAD_NAME else GPT2.names.prefix + part.name: (
            weights[name].T if part.is_transposed else weights[name]
        )
        for name, (part,) in parts.items()
    }
    outcome = model.load_state_dict(named, strict=False)
    tied = {HEAD_NAME} if ours.tied_head else set()
    lacking = set(outcome.missing_keys) - tied
    if lacking or outcome.unexpected_keys:
        raise MeasurementFailed(
            f"transformers' GPT-2 and the engine's differ in their parameters: it lacks values for "
            f"{sorted(lacking)} and does not know {sorted(outcome.unexpected_keys)}."
        )
    return model
