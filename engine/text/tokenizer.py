"""Text to token ids and back, from the tokenizer files of a model directory.

The files are read on first use: a run on token ids needs no tokenizer package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engine.errors import RequestError
from engine.numbers import whole_number
from engine.text.chat import ChatTemplate, Message
from engine.text.loading import TOKENIZER_FILES, LoadedTokenizer, load_tokenizer_at

SHORT_TEXT = 2000
"""Characters that are encoded in less time than a thread takes to begin."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BEYOND_IDS = 2**31
_MOST_BYTES_INCOMPLETE = 3
"""Of a UTF-8 character whose last byte has not come."""

_BYTE = re.compile(r"<0x[+0-9A-Fa-f][0-9A-Fa-f]>")

_TOKEN_BY_TOKEN = ("Metaspace", "WordPiece", "Replace", "Strip", "ByteFallback")
"""Steps of a decoder that look at a token, whether another came before, and runs of bytes."""

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = (one for one in range(256) if one not in _PRINTABLE)
_BYTES_OF_LETTERS = {chr(one): one for one in _PRINTABLE} | {
    chr(256 + place): one for place, one in enumerate(_OTHERS)
}
"""Byte-level tokens are written in letters that each stand for a byte."""

_PUNCTUATION = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Loses its blanks where a tokenizer cleans up, in this order."""


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

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, never truncated or padded.

        With `add_special_tokens` they begin and end with those that the tokenizer puts there.

        Raises
        ------
        RequestError
            `text` is no string, or holds half of a surrogate pair.
        ModelError
            The tokenizer files are damaged, or need a package that is not installed.
        """
        _require_text(text)
        backend = self._loaded.backend
        if len(text) > SHORT_TEXT and hasattr(backend, "encode_batch_fast"):
            # As a batch, so that other threads go on meanwhile.
            (encoded,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        else:
            encoded = backend.encode(text, add_special_tokens=add_special_tokens)
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
        loaded = self._loaded
        text: str = loaded.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        if loaded.cleans_up:
            for written in _PUNCTUATION:
                text = text.replace(written, written.strip())
        return text

    def encode_chat(
        self,
        messages: Sequence[Message],
        template: ChatTemplate | None = None,
        /,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation, by the tokenizer's own chat template or another.

        Parameters
        ----------
        messages, variables
            As `ChatTemplate.render` takes them.

        Raises
        ------
        RequestError
            The tokenizer has no template, or that refuses the messages.
        ModelError
            As `encode`; or the template is damaged.
        """
        template = template or self.chat_template
        if template is None:
            raise RequestError(
                "The model's tokenizer has no chat template: give the prompt as text, or name a "
                "template."
            )
        # The template writes them itself.
        return self.encode(template.render(messages, **variables), add_special_tokens=False)

    def template_of(self, source: str) -> ChatTemplate:
        """A chat template in place of the tokenizer's own, in jinja, with its special tokens.

        Raises
        ------
        ModelError
            It is no valid jinja.
        """
        directory = self._path.parent if self._path.is_file() else self._path
        return ChatTemplate.beside(directory, source)

    def prepare(self) -> None:
        """Read the files, if that has not been done yet.

        Raises
        ------
        ModelError
            As `encode`.
        """
        _ = self.decoding

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template beside the tokenizer's files; None where there is none."""
        return None if self._path.is_file() else ChatTemplate.in_directory(self._path)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token by itself stands for, special ones too; bytes may be half a character."""
        (token_id,) = _checked_ids([token_id])
        decoding = self.decoding
        token = decoding.token_of(token_id)
        if token is None:
            return b""
        if decoding.has_byte_tokens and _BYTE.fullmatch(token):
            return bytes([int(token[1:-1], 16)])
        if decoding.kind == "bytes" and all(one in _BYTES_OF_LETTERS for one in token):
            return bytes(_BYTES_OF_LETTERS[one] for one in token)
        if decoding.kind == "bytes":
            return token.encode()
        return self.decode([token_id], skip_special_tokens=False).encode()

    @cached_property
    def decoding(self) -> Decoding:
        """What a `TextStream` must know of how this tokenizer decodes."""
        return Decoding.of(self._loaded)

    @cached_property
    def _loaded(self) -> LoadedTokenizer:
        return load_tokenizer_at(self._path)


class Decoding(NamedTuple):
    """How a text depends on its tokens.

    `kind` is "bytes" where tokens are bytes of UTF-8; "tokens" where each has its own text, but the
    first may lose a blank, and tokens that stand for a byte are decoded with those beside them; and
    "whole" where any token may change the text of any other.
    """

    kind: Literal["bytes", "tokens", "whole"]
    token_of: Callable[[int], str | None] = str
    special_ids: frozenset[int] = frozenset()
    has_byte_tokens: bool = False

    @classmethod
    def of(cls, loaded: LoadedTokenizer) -> Decoding:
        """The way of a tokenizer, by the steps of its decoder."""
        backend = loaded.backend
        if loaded.cleans_up or not hasattr(backend, "get_added_tokens_decoder"):
            return cls("whole")
        added = backend.get_added_tokens_decoder().items()
        special = frozenset(token_id for token_id, token in added if token.special)
        # Without a decoder there is a blank between tokens.
        steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls("bytes", backend.id_to_token, special)
        num_first = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
        # Behind Fuse a step sees the whole text. Of those, only the blanks that Strip takes off its
        # beginning are known before its end.
        is_known = all(kind in _TOKEN_BY_TOKEN for kind in kinds[:num_first]) and all(
            step["type"] == "Fuse" or (step["type"] == "Strip" and step["stop"] == 0)
            for step in steps[num_first:]
        )
        kind: Literal["tokens", "whole"] = "tokens" if is_known else "whole"
        return cls(kind, backend.id_to_token, special, "ByteFallback" in kinds)

    def has_text(self, token_id: int) -> bool:
        """Whether the decoder sees the token at all."""
        return token_id not in self.special_ids and self.token_of(token_id) is not None

    def waits(self, token_id: int) -> bool:
        """Whether the token's text depends on what follows, whatever that is."""
        is_byte = self.has_byte_tokens and _BYTE.fullmatch(self.token_of(token_id) or "")
        return self.kind == "whole" or bool(is_byte)


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a decoder, those of sequences within sequences too."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for one in decoder["decoders"] for step in _steps(one)]


class TextStream:
    """Turns one request's tokens into text as they come, without ever taking text back.

    All pieces together are `Tokenizer.decode` of all tokens. Bytes that may yet become a character
    are held back until its last one; bytes that cannot are U+FFFD. A token such as <0x0A>, which
    stands for a byte, is held back until one comes that stands for none, since one wrong byte turns
    all beside it into U+FFFD. A tokenizer that changes the whole text at last, as those do that
    clean up blanks, gives all of it at the end. Otherwise a token costs the same however many came
    before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Tokens whose decoding begins with `_num_given` characters that were given out already.
        # What later tokens are decoded to behind these is what they are behind all that came.
        self._last_ids: list[int] = []
        self._num_given = 0
        self._held_ids: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty in the midst of a character.

        Raises
        ------
        RequestError, ModelError
            As `Tokenizer.decode`; nothing is changed then.
        """
        (token_id,) = _checked_ids([token_id])
        decoding, decode = self._tokenizer.decoding, self._tokenizer.decode
        if not decoding.has_text(token_id):
            return ""
        if decoding.waits(token_id):
            self._held_ids.append(token_id)
            return ""
        token_ids = [*self._last_ids, *self._held_ids, token_id]
        text = decode(token_ids)
        is_open = decoding.kind == "bytes" and text.endswith(_REPLACEMENT)
        piece = text[self._num_given : len(text) - is_open]
        if decoding.kind == "bytes":
            # An incomplete character has at most so many bytes, and a token at least one.
            self._last_ids = token_ids[-_MOST_BYTES_INCOMPLETE:]
            self._num_given = len(decode(self._last_ids)) - is_open
        elif length := len(decode([token_id])):
            self._last_ids, self._num_given = [token_id], length
        elif not self._num_given:
            # The first text has yet to come, and may depend on all of these.
            self._last_ids, self._num_given = token_ids, len(text)
        self._held_ids.clear()
        return piece

    def finish(self) -> str:
        """Text still held back, with U+FFFD for a character that never became whole."""
        token_ids = [*self._last_ids, *self._held_ids]
        held = self._tokenizer.decode(token_ids)[self._num_given :] if token_ids else ""
        self._last_ids, self._num_given, self._held_ids = [], 0, []
        return held


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
