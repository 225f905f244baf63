"""From the name of a model to the model, ready on its device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.checkpoint import (
    StoredTensor,
    allocating_weights,
    load_weights,
    read_headers,
)
from engine.models.config import GPT2Config, read_config
from engine.models.gpt2 import GPT2, is_stored_transposed, parameter_shapes
from engine.models.random_weights import random_weights
from engine.text.tokenizer import COMPANION_FILES, TOKENIZER_FILES, Tokenizer

RANDOM_PREFIX = "random:"

RANDOM_CONFIGS: dict[str, GPT2Config] = {
    "gpt2-tiny": GPT2Config(
        vocab_size=1024,
        num_layers=2,
        num_heads=4,
        hidden_size=128,
        inner_size=512,
        eos_token_ids=(1023,),
    ),
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(num_layers=24, num_heads=16, hidden_size=1024, inner_size=4096),
    "gpt2-large": GPT2Config(num_layers=36, num_heads=20, hidden_size=1280, inner_size=5120),
    "gpt2-xl": GPT2Config(num_layers=48, num_heads=25, hidden_size=1600, inner_size=6400),
}
"""Shapes that come with seeded weights, under `random:NAME`."""

# What is fetched from the hub: never a pickle, never code.
_HUB_TOKENIZER_FILES = ("config.json", *COMPANION_FILES, *TOKENIZER_FILES)
_HUB_FILES = (
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    *_HUB_TOKENIZER_FILES,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, and the tokenizer that came with it, if one did."""

    model: GPT2
    config: GPT2Config
    tokenizer: Tokenizer | None


def load_model(
    name: str | os.PathLike[str],
    *,
    device: torch.device,
    dtype: torch.dtype | None = None,
    seed: int = 0,
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

    Raises
    ------
    ModelError
        There is no such model, or its files are missing, damaged, inconsistent or unsupported.
    ConfigError
        The device has too little memory for the weights.
    """
    name = os.fspath(name)
    if name.startswith(RANDOM_PREFIX):
        config = _random_config(name)
        dtype = dtype or default_dtype(config, device)
        shapes = parameter_shapes(config)
        with allocating_weights(f"The weights of {name}", shapes, device, dtype):
            model = GPT2(config, random_weights(config, seed=seed, device=device, dtype=dtype))
        return LoadedModel(model, config, tokenizer=None)
    directory = _find_directory(name)
    config = read_config(directory)
    stored = read_headers(directory)
    _require_room_for_layers(directory, config, stored)
    weights = load_weights(
        stored,
        parameter_shapes(config),
        is_stored_transposed=is_stored_transposed,
        device=device,
        dtype=dtype or default_dtype(config, device),
    )
    config = replace(config, tied_head="lm_head.weight" not in weights)
    return LoadedModel(GPT2(config, weights), config, Tokenizer.in_directory(directory))


def _random_config(name: str) -> GPT2Config:
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
        _random_config(name)
        return None
    file = os.path.expanduser(name)
    if os.path.isfile(file):
        return Tokenizer(Path(file))
    return Tokenizer.in_directory(_find_directory(name, _HUB_TOKENIZER_FILES))


def _require_room_for_layers(
    directory: Path, config: GPT2Config, stored: Mapping[str, StoredTensor]
) -> None:
    """Refuse more layers than there are tensors, before anything grows with their number."""
    if config.num_layers > len(stored):
        raise ModelError(
            f"{directory / 'config.json'} claims {config.num_layers} layers, but the weights "
            f"beside it hold {len(stored)} tensors in all; both must come from the same model."
        )


def default_dtype(config: GPT2Config, device: torch.device) -> torch.dtype:
    """float32 on the CPU; elsewhere the half-precision type of the checkpoint, or float16."""
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float16


def _find_directory(name: str, hub_files: Sequence[str] = _HUB_FILES) -> Path:
    """The local directory that `name` is, or that the hub model of this name was fetched to."""
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
    return _fetch_from_hub(name, hub_files)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~", os.sep)) or name.count("/") > 1 or name.endswith("/")


def _fetch_from_hub(name: str, files: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise ModelError(
            f"There is no local directory {name}; fetching it from the hub needs the package "
            "huggingface_hub, which is not installed. Install it (pip install 'kvtrail[engine]')."
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except HFValidationError as error:
        raise ModelError(
            f"{name!r} is neither a local directory nor a hub id; a hub id looks like gpt2 or "
            "openai-community/gpt2, and built-in models are called random:NAME."
        ) from error
    except GatedRepoError as error:
        raise ModelError(
            f"The hub model {name} is gated: accept its terms on the hub and log in, or give a "
            "local directory."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name} is neither a local directory nor a model on the hub that can be read."
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"There is no local directory {name}. The hub model of that name is not in the local "
            "cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set)."
        ) from error
    except Exception as error:  # the client's own, its HTTP library's and the system's
        raise ModelError(f"The hub model {name} cannot be fetched: {error}.") from error
