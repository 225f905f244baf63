"""Text to token ids and back, from the tokenizer files of a model directory.

The files are read on first use: a run on token ids needs no tokenizer package.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.errors import ModelError, RequestError
from engine.models.files import read_json_object, refuse_lfs_pointer
from engine.numbers import whole_number

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
)

# What the other files may refer to; by themselves they are no tokenizer.
COMPANION_FILES = ("added_tokens.json", "special_tokens_map.json")

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BEYOND_IDS = 2**31
_MOST_BYTES_INCOMPLETE = 3
"""Of a UTF-8 character whose last byte has not come."""


class Tokenizer:
    """Byte-level BPE, or whatever else the files beside the weights describe.

    tokenizer.json is read where there is one. Any other set of files is converted by transformers,
    if it is installed.

    Parameters
    ----------
    path : Path
        The model directory, or a file in the format of tokenizer.json.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

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
        RequestError
            `text` is no string, or holds half of a surrogate pair.
        ModelError
            The tokenizer files are damaged, or need a package that is not installed.
        """
        _require_text(text)
        encoded = self._backend.encode(text)
        token_ids: list[int] = encoded.ids if hasattr(encoded, "ids") else list(encoded)
        return token_ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are no whole UTF-8 character become U+FFFD.

        An id behind the tokenizer's last, which a model with more embeddings than words can make,
        has no text.

        Raises
        ------
        RequestError
            No vocabulary has an id: it is below 0, of more than 31 bits, or no whole number.
        ModelError
            As `encode`.
        """
        ids = _checked_ids(token_ids)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    @property
    def most_incomplete(self) -> int:
        """As how many U+FFFD the bytes of a character can be decoded before its last has come.

        Byte-level BPE makes one of them all, other decoders one of each.
        """
        return 1 if type(getattr(self._backend, "decoder", None)).__name__ == "ByteLevel" else 3

    @cached_property
    def _backend(self) -> Any:
        if self._path.is_file():
            return _read_tokenizer_json(self._path)
        for name in (*TOKENIZER_FILES, *COMPANION_FILES):
            refuse_lfs_pointer(self._path / name)
        if (self._path / "tokenizer.json").is_file():
            return _read_tokenizer_json(self._path / "tokenizer.json")
        return _convert_with_transformers(self._path)


class TextStream:
    """Turns one request's tokens into text as they come, without ever taking text back.

    A character whose bytes are spread over several tokens appears with the last of them. Bytes
    that may yet become a character are held back, and never more than a character can have; bytes
    that cannot are U+FFFD. All pieces together are `Tokenizer.decode` of all tokens. A token costs
    the same however many came before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The last tokens that have text: as many as an incomplete character can have, since it has
        # at most so many bytes. What they are decoded to, after any others, ends in the same way.
        self._last_ids: list[int] = []
        self._text = ""
        self._num_given = 0

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty in the midst of a character.

        Raises
        ------
        RequestError, ModelError
            As `Tokenizer.decode`; nothing is changed then.
        """
        token_ids = [*self._last_ids, token_id]
        text = self._tokenizer.decode(token_ids)
        if text == self._text and not self._tokenizer.decode([token_id]):
            return ""
        num_whole = max(len(text) - self._num_incomplete(text), self._num_given)
        piece = text[self._num_given : num_whole]
        num_held = len(text) - min(num_whole, len(text))
        if len(token_ids) > _MOST_BYTES_INCOMPLETE:
            token_ids = token_ids[-_MOST_BYTES_INCOMPLETE:]
            text = self._tokenizer.decode(token_ids)
        self._last_ids, self._text = token_ids, text
        self._num_given = max(0, len(text) - num_held)
        return piece

    def finish(self) -> str:
        """Text still held back, with U+FFFD for a character that never became whole."""
        held = self._text[self._num_given :]
        self._last_ids, self._text, self._num_given = [], "", 0
        return held

    def _num_incomplete(self, text: str) -> int:
        """Characters at the end of `text` that tokens to come may turn into another one."""
        if not text.endswith(_REPLACEMENT):
            return 0
        num_replaced = len(text) - len(text.rstrip(_REPLACEMENT))
        return min(num_replaced, self._tokenizer.most_incomplete)


def _require_text(text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"The tokenizer takes text, a str, not a {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The text holds {text[error.start]!r} at character {error.start}, half of a surrogate "
            "pair, which is no character: decode the text as UTF-8 with errors='replace'."
        ) from None


def _checked_ids(token_ids: Iterable[int]) -> list[int]:
    """The ids as a list of int, each one that a vocabulary could have."""
    try:
        given = list(token_ids)
    except TypeError:
        raise RequestError(
            f"decode takes a sequence of token ids, not {token_ids!r}; put one id in a list."
        ) from None
    # Those of the engine are plain numbers, which need no look at each.
    ids = given if set(map(type, given)) <= {int} else [_checked_id(one) for one in given]
    if ids and not (min(ids) >= 0 and max(ids) < _BEYOND_IDS):
        outside = next(one for one in ids if not 0 <= one < _BEYOND_IDS)
        raise RequestError(
            f"Token id {outside} is outside of every vocabulary; ids are whole numbers from 0 to "
            f"{_BEYOND_IDS - 1}."
        )
    return ids


def _checked_id(token_id: object) -> int:
    number = whole_number(token_id)
    if number is None:
        raise RequestError(
            f"decode takes token ids, which are whole numbers; {token_id!r} is not one."
        )
    return number


def _read_tokenizer_json(path: Path) -> Any:
    tokenizers = _import_tokenizers(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        refuse_lfs_pointer(path)
        raise ModelError(f"{path} is no valid tokenizer file: {error}.") from error
    return _whole(tokenizer)


def _whole(tokenizer: Any) -> Any:
    """`tokenizer` without the padding and truncation of its training run.

    Prompts are taken as they are, and the engine says so where one is too long.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _import_tokenizers(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ModelError(
            f"Reading {path} needs the package tokenizers, which is not installed. Install it (pip "
            "install tokenizers), or give prompts as token ids."
        ) from error
    return tokenizers


def _convert_with_transformers(directory: Path) -> Any:
    try:
        from transformers import AutoTokenizer, GPT2Tokenizer
    except ImportError as error:
        raise ModelError(
            f"{directory} has no tokenizer.json; converting its tokenizer needs the package "
            "transformers, which is not installed. Install it (pip install "
            "transformers), or give prompts as token ids."
        ) from error
    # Code of the model's own is never run.
    options = {"local_files_only": True, "trust_remote_code": False}
    reader = AutoTokenizer if _names_its_kind(directory) else GPT2Tokenizer
    try:
        converted = reader.from_pretrained(str(directory), **options)
    except Exception as error:  # anything from a missing file to a missing package
        raise ModelError(
            f"transformers cannot read a tokenizer in {directory}: {error}."
        ) from error
    # Absent from the few that are written in Python.
    backend = getattr(converted, "backend_tokenizer", None)
    tokenizer = converted if backend is None else _whole(backend)
    _require_added_ids(directory / "added_tokens.json", converted)
    return tokenizer


def _names_its_kind(directory: Path) -> bool:
    """Whether the files say what they are; vocab.json with merges.txt alone is GPT-2's."""
    if not ((directory / "vocab.json").is_file() and (directory / "merges.txt").is_file()):
        return True
    options = directory / "tokenizer_config.json"
    if options.is_file() and read_json_object(options).get("tokenizer_class"):
        return True
    return (directory / "config.json").is_file()


def _require_added_ids(path: Path, converted: Any) -> None:
    """transformers gives added tokens the ids behind the vocabulary's, whatever the file says."""
    added = read_json_object(path) if path.is_file() else {}
    for token, token_id in added.items():
        given = converted.convert_tokens_to_ids(token)
        if given != token_id:
            raise ModelError(
                f"{path} gives {token!r} the id {token_id!r}, but behind the vocabulary it would "
                f"be {given}; added ids must go on from the vocabulary's."
            )
