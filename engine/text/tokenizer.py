"""Text to token ids and back, from the tokenizer files of a model directory.

The files are read on first use: a run on token ids needs no tokenizer package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.config import read_json_object

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
)

_END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """Byte-level BPE, or whatever else the files beside the weights describe.

    tokenizer.json is used where there is one, else vocab.json with merges.txt; for any other set
    of files transformers is asked, if it is installed.

    Parameters
    ----------
    directory : Path
        The model directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def in_directory(cls, directory: Path) -> Tokenizer | None:
        """The tokenizer of a model directory; None where it holds no tokenizer files."""
        if any((directory / name).is_file() for name in TOKENIZER_FILES):
            return cls(directory)
        return None

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, never truncated or padded.

        Raises
        ------
        ModelError
            The tokenizer files are damaged, or need a package that is not installed.
        """
        encoded = self._backend.encode(text)
        token_ids: list[int] = encoded.ids if hasattr(encoded, "ids") else list(encoded)
        return token_ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are no whole UTF-8 character become U+FFFD.

        Raises
        ------
        ModelError
            As `encode`.
        """
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    @cached_property
    def _backend(self) -> Any:
        if (self._directory / "tokenizer.json").is_file():
            return _read_tokenizer_json(self._directory / "tokenizer.json")
        vocab, merges = self._directory / "vocab.json", self._directory / "merges.txt"
        if vocab.is_file() and merges.is_file():
            return _read_vocab_and_merges(vocab, merges)
        return _read_with_transformers(self._directory)


class TextStream:
    """Turns one request's tokens into text as they come, without ever taking text back.

    A character whose bytes are spread over several tokens appears with the last of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        # The ids from _context on are decoded anew each time: a token's text may depend on the
        # one before it. Those before _shown have been given out.
        self._context = 0
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty in the midst of a character."""
        self._token_ids.append(token_id)
        text = self._new_text()
        if not text or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._context, self._shown = self._shown, len(self._token_ids)
        return text

    def finish(self) -> str:
        """Text still held back, with U+FFFD for a character that never became whole."""
        text = self._new_text()
        self._context = self._shown = len(self._token_ids)
        return text

    def _new_text(self) -> str:
        shown = self._tokenizer.decode(self._token_ids[self._context : self._shown])
        return self._tokenizer.decode(self._token_ids[self._context :])[len(shown) :]


def _read_tokenizer_json(path: Path) -> Any:
    tokenizers = _import_tokenizers(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise ModelError(f"{path} is no valid tokenizer file: {error}.") from error
    # The file may carry the padding and truncation of the training run; prompts are taken as
    # they are, and the engine says so where one is too long.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_vocab_and_merges(vocab: Path, merges: Path) -> Any:
    tokenizers = _import_tokenizers(vocab)
    try:
        model = tokenizers.models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the package raises plain Exception
        raise ModelError(
            f"{vocab} and {merges.name} beside it are no valid byte-level BPE: {error}."
        ) from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if tokenizer.token_to_id(_END_OF_TEXT) is not None:
        tokenizer.add_special_tokens([_END_OF_TEXT])
    added_path = vocab.with_name("added_tokens.json")
    if added_path.is_file():
        _add_tokens(tokenizer, added_path)
    return tokenizer


def _add_tokens(tokenizer: Any, path: Path) -> None:
    """Add the tokens of added_tokens.json, whose ids must go on from the vocabulary's."""
    added = read_json_object(path)
    if not all(isinstance(token_id, int) for token_id in added.values()):
        raise ModelError(f"{path} must map each token to an integer id.")
    tokens: Sequence[str] = sorted(added, key=lambda token: int(added[token]))
    tokenizer.add_special_tokens(list(tokens))
    for token in tokens:
        if tokenizer.token_to_id(token) != added[token]:
            raise ModelError(
                f"{path} gives {token!r} the id {added[token]}, but after the vocabulary it would "
                f"be {tokenizer.token_to_id(token)}; added ids must go on from the vocabulary's."
            )


def _import_tokenizers(path: Path) -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
    except ImportError as error:
        raise ModelError(
            f"Reading {path} needs the package tokenizers, which is not installed; install it, "
            "or give prompts as token ids."
        ) from error
    return tokenizers


def _read_with_transformers(directory: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ModelError(
            f"{directory} has neither tokenizer.json nor vocab.json with merges.txt; reading its "
            "tokenizer needs the package transformers, which is not installed. Install it, or "
            "give prompts as token ids."
        ) from error
    try:
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # anything from a missing file to a missing package
        raise ModelError(
            f"transformers cannot read a tokenizer in {directory}: {error}."
        ) from error
