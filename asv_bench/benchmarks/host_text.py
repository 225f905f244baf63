"""The host's cost of turning a stream of tokens into text, for short and long requests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

from .sharing import CommitBenchmark, median_s, tracked

if TYPE_CHECKING:
    from engine import Tokenizer

READINGS = 5


class TextStreams(CommitBenchmark, content=["words", "invalid_bytes"], tokens=[256, 1024, 4096]):
    """A `TextStream` of `tokens` tokens, of text or of bytes that never become a character.

    Seconds per token must be the same for each length.
    """

    def prepare(self, content: str, tokens: int) -> None:
        import engine

        if not hasattr(engine, "TextStream"):
            raise SkipNotImplemented("this commit does not turn tokens into text as they come")
        self._stream: Any = engine.TextStream
        with tempfile.TemporaryDirectory() as directory:
            self._tokenizer = _byte_tokenizer(Path(directory))
        repeated = [_alphabet().index(chr(0xFF))]  # a byte of no character
        if content == "words":
            repeated = self._tokenizer.encode("to be, or not to be, naïve 🦊 ")
        self._token_ids = [int(token_id) for token_id in np.resize(repeated, tokens)]

    @tracked()
    def track_time(self, content: str, tokens: int) -> float:
        """Seconds per token, the end of the stream included."""

        def begin() -> None:
            self._begun = self._stream(self._tokenizer)

        def stream_all() -> None:
            for token_id in self._token_ids:
                self._begun.push(token_id)
            self._begun.finish()

        return median_s(stream_all, READINGS, before=begin) / tokens


def _byte_tokenizer(directory: Path) -> Tokenizer:
    """A byte-level tokenizer, with a token for each byte and no other."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    from engine import Tokenizer

    words = {character: place for place, character in enumerate(_alphabet())}
    made = tokenizers.Tokenizer(models.BPE(words, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer(directory)
    # The files are read on first use.
    tokenizer.encode("")
    return tokenizer


def _alphabet() -> list[str]:
    """The characters that stand for bytes in a byte-level tokenizer."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())
