"""Fetching the files of a model from the hub: never a pickle, never code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import ModelError
from engine.text.chat import CHAT_FILES
from engine.text.loading import COMPANION_FILES, TOKENIZER_FILES

TOKENIZER_ONLY = ("config.json", *COMPANION_FILES, *TOKENIZER_FILES, *CHAT_FILES)
EVERYTHING = (
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    *TOKENIZER_ONLY,
)


def fetch_from_hub(name: str, files: Sequence[str]) -> Path:
    """The local directory that the hub model `name` was fetched to, if it was not there before.

    Parameters
    ----------
    name
        A hub id.
    files
        Patterns of those wanted: `TOKENIZER_ONLY` or `EVERYTHING`.

    Raises
    ------
    ModelError
        There is no such model, or it cannot be fetched.
    """
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
            "huggingface_hub, which is not installed. Install it (pip install huggingface-hub)."
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
