"""From the name of a model to the model, ready on its device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.checkpoint import allocating_weights, load_weights, read_headers
from engine.models.decoder import Decoder
from engine.models.families import FAMILIES, read_config
from engine.models.files import StoredTensor
from engine.models.gemma import gemma3
from engine.models.gpt2 import gpt2
from engine.models.hub import EVERYTHING, TOKENIZER_ONLY, fetch_from_hub
from engine.models.llama import llama3
from engine.models.qwen import qwen3
from engine.models.random_weights import random_weights
from engine.models.share import WHOLE, Share
from engine.models.spec import DecoderSpec
from engine.models.weights import HEAD, is_linear, parameter_shapes
from engine.parallel.group import Group
from engine.text.tokenizer import Tokenizer

RANDOM_PREFIX = "random:"

RANDOM_CONFIGS: dict[str, DecoderSpec] = {
    "gpt2-tiny": gpt2(
        vocab_size=1024,
        num_layers=2,
        num_heads=4,
        hidden_size=128,
        inner_size=512,
        eos_token_ids=(1023,),
    ),
    "gpt2": gpt2(),
    "gpt2-medium": gpt2(num_layers=24, num_heads=16, hidden_size=1024, inner_size=4096),
    "gpt2-large": gpt2(num_layers=36, num_heads=20, hidden_size=1280, inner_size=5120),
    "gpt2-xl": gpt2(num_layers=48, num_heads=25, hidden_size=1600, inner_size=6400),
    "llama-tiny": llama3(
        vocab_size=1024,
        max_positions=1024,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        hidden_size=128,
        inner_size=256,
        stretch=8.0,
        tied_head=True,
        eos_token_ids=(1023,),
    ),
    "llama-3.2-1b": llama3(
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        hidden_size=2048,
        inner_size=8192,
        stretch=32.0,
        tied_head=True,
    ),
    "llama-3.1-8b": llama3(
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        hidden_size=4096,
        inner_size=14336,
        stretch=8.0,
        tied_head=False,
    ),
    "qwen3-tiny": qwen3(
        vocab_size=1024,
        max_positions=1024,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        hidden_size=128,
        inner_size=512,
        tied_head=True,
        eos_token_ids=(1023,),
    ),
    "qwen3-0.6b": qwen3(
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        hidden_size=1024,
        inner_size=3072,
        tied_head=True,
    ),
    "qwen3-8b": qwen3(
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        hidden_size=4096,
        inner_size=12288,
        tied_head=False,
    ),
    "gemma-tiny": gemma3(
        vocab_size=1024,
        max_positions=1024,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        hidden_size=128,
        inner_size=256,
        sliding_window=64,
        local_layers_each=1,
        eos_token_ids=(1023,),
    ),
    "gemma-3-1b": gemma3(
        num_layers=26, num_heads=4, num_kv_heads=1, hidden_size=1152, inner_size=6912
    ),
}
"""Shapes that come with seeded weights, under `random:NAME`."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, or a part of it, on its device, and the tokenizer that came with it, if one did.

    `config` is of the whole model, and the decoder's own of the part.
    """

    model: Decoder
    config: DecoderSpec
    tokenizer: Tokenizer | None


def load_model(
    name: str | os.PathLike[str],
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    share: Share = WHOLE,
    group: Group | None = None,
    quantization: str | None = None,
    max_model_len: int | None = None,
) -> LoadedModel:
    """Load a model by name.

    Parameters
    ----------
    name : `random:NAME` for a built-in shape with seeded weights (see `RANDOM_CONFIGS`), the path
        of a local directory in Hugging Face format, or a hub id such as `gpt2`.
    device : where the weights go.
    dtype : their type; None chooses float32 on the CPU, elsewhere the half-precision type that the
        checkpoint was written in, or float16.
    seed : of the weights of a `random:` model.
    share, group : the part of the model that is loaded, and the ranks that have the others.
    quantization, max_model_len : as of `EngineConfig`.

    Raises
    ------
    ModelError
        There is no such model, or its files are missing, damaged, inconsistent or unsupported.
    ConfigError
        The device has too little memory for the weights, or there are no such parts.
    """
    name = os.fspath(name)
    quantize, rounds_rows = quantization is not None, quantization == "fp8-dynamic"
    if name.startswith(RANDOM_PREFIX):
        config = random_config(name).up_to(max_model_len)
        dtype = dtype or default_dtype(config, device)
        part = share.spec(config)
        shapes = parameter_shapes(part)
        in_fp8 = set(filter(is_linear, shapes)) if quantize else ()
        with allocating_weights(f"The weights of {name}", shapes, device, dtype, in_fp8):
            weights = random_weights(
                config, seed=seed, device=device, dtype=dtype, share=share, quantize=quantize
            )
            model = Decoder(part, weights, group, rounds_rows=rounds_rows)
        return LoadedModel(model, config, tokenizer=None)
    directory = find_directory(name)
    config = read_config(directory).up_to(max_model_len)
    family = FAMILIES[config.family]
    stored = read_headers(directory, family)
    _require_room_for_layers(directory, config, stored)
    weights = load_weights(
        stored,
        family,
        config,
        device=device,
        dtype=dtype or default_dtype(config, device),
        share=share,
        form="fp8" if quantize else "stored",
    )
    config = replace(config, tied_head=HEAD not in weights)
    model = Decoder(share.spec(config), weights, group, rounds_rows=rounds_rows)
    return LoadedModel(model, config, Tokenizer.in_directory(directory))


def model_spec(name: str) -> DecoderSpec:
    """The spec of a model that `load_model` loads; no weights are read.

    Raises
    ------
    ModelError
        As `load_model`.
    """
    if name.startswith(RANDOM_PREFIX):
        return random_config(name)
    return read_config(find_directory(name))


def random_config(name: str) -> DecoderSpec:
    """The spec of a built-in model, by its name with the prefix; ModelError if there is none."""
    shape = name.removeprefix(RANDOM_PREFIX)
    if shape not in RANDOM_CONFIGS:
        known = ", ".join(RANDOM_PREFIX + known for known in RANDOM_CONFIGS)
        raise ModelError(f"There is no built-in model {name!r}; the built-in models are {known}.")
    return RANDOM_CONFIGS[shape]


def load_tokenizer(name: str | os.PathLike[str]) -> Tokenizer | None:
    """Load a tokenizer by the name of its model; the weights are neither read nor fetched.

    Parameters
    ----------
    name : as `load_model` takes it, or a file in the format of tokenizer.json.

    Returns
    -------
    None for a model that brings none.

    Raises
    ------
    ModelError
        There is no such model. The tokenizer's own files are read on its first use.
    """
    name = os.fspath(name)
    if name.startswith(RANDOM_PREFIX):
        random_config(name)
        return None
    file = os.path.expanduser(name)
    if os.path.isfile(file):
        return Tokenizer(Path(file))
    return Tokenizer.in_directory(find_directory(name, TOKENIZER_ONLY))


def _require_room_for_layers(
    directory: Path, config: DecoderSpec, stored: Mapping[str, StoredTensor]
) -> None:
    """Refuse more layers than there are tensors, before anything grows with their number."""
    if config.num_layers > len(stored):
        raise ModelError(
            f"{directory / 'config.json'} claims {config.num_layers} layers, but the weights "
            f"beside it hold {len(stored)} tensors in all; both must come from the same model."
        )


def default_dtype(config: DecoderSpec, device: torch.device) -> torch.dtype:
    """float32 on the CPU; elsewhere the half-precision type of the checkpoint, or float16."""
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float16


def find_directory(name: str, hub_files: Sequence[str] = EVERYTHING) -> Path:
    """The local directory that `name` is, or that the hub model of this name was fetched to.

    Raises
    ------
    ModelError
        There is neither.
    """
    if not name.strip():
        raise ModelError(
            "The model name is empty; give random:NAME, a local directory or a hub id such as gpt2."
        )
    try:
        path = Path(name).expanduser()
        is_directory, is_there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # no such home, a name that is too long
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{name[:200]} is no directory that can be read: {reason}.") from error
    if is_directory:
        return path
    if is_there:
        raise ModelError(f"{name} is a file; give the directory that holds it.")
    if _looks_like_a_path(name):
        raise ModelError(f"The directory {name} does not exist.")
    return fetch_from_hub(name, hub_files)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~", os.sep)) or name.count("/") > 1 or name.endswith("/")
