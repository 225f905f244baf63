"""The engine's tokenizer for prompts, so that counted tokens are submitted tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asv_bench.errors import Refused

if TYPE_CHECKING:
    from engine import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """Text to token ids and back; its methods may run in several threads at once."""

    _tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, never truncated or padded.

        Raises Refused if `text` cannot be tokenized.
        """
        from engine import KvtrailError

        try:
            return self._tokenizer.encode(text)
        except KvtrailError as error:
            raise Refused(f"a prompt cannot be tokenized: {error}") from error

    def decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids`, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def load_tokenizer(name: str) -> PromptTokenizer:
    """Load the tokenizer of a local directory, a tokenizer.json, or a hub id.

    Raises Refused if there is none to load.
    """
    tokenizer = model_tokenizer(name)
    if tokenizer is None:
        raise Refused(
            f"the tokenizer {name!r} cannot be loaded: no tokenizer comes with it; name a "
            "directory, a tokenizer.json or a hub id that has one."
        )
    return tokenizer


def model_tokenizer(model: str) -> PromptTokenizer | None:
    """The tokenizer of a model name as `EngineConfig` takes it; None where it brings none.

    Raises Refused if there is no such model, or its tokenizer cannot be read.
    """
    # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
    import engine

    try:
        loaded = engine.load_tokenizer(model)
        if loaded is None:
            return None
        # The files are read on first use, which must come before the threads that share them.
        loaded.encode("")
    except engine.KvtrailError as error:
        raise Refused(f"the tokenizer {model!r} cannot be loaded: {error}") from error
    return PromptTokenizer(loaded)
