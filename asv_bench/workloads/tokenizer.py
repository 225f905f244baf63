"""A tokenizer for prompts, loaded by the ruler itself so that it can run in other threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """Text to token ids and back; its methods may run in several threads at once."""

    name: str
    _tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids`, special tokens included."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))


def load_tokenizer(name: str) -> PromptTokenizer:
    """Load the tokenizer of a local directory, a tokenizer.json, or a hub id.

    Raises
    ------
    Refused
        If there is none to load.
    """
    from tokenizers import Tokenizer

    path = Path(name)
    try:
        if path.is_dir():
            if not (path / "tokenizer.json").is_file():
                raise Refused(
                    f"{path} has no tokenizer.json; save it with save_pretrained of a fast "
                    f"tokenizer."
                )
            loaded = Tokenizer.from_file(str(path / "tokenizer.json"))
        elif path.is_file():
            loaded = Tokenizer.from_file(str(path))
        else:
            loaded = Tokenizer.from_pretrained(name)
    except Refused:
        raise
    except Exception as error:  # tokenizers raises nothing more exact than Exception
        raise Refused(f"the tokenizer {name!r} cannot be loaded: {error}.") from error
    return PromptTokenizer(name, loaded)


def model_tokenizer(model: str) -> PromptTokenizer | None:
    """The tokenizer of a model name as `EngineConfig` takes it; None where it brings none."""
    if model.startswith("random:"):
        return None
    path = Path(model)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        return None
    return load_tokenizer(model)
