"""The text of a request as it is written, which ends before a stop string."""

from __future__ import annotations

from engine.text.tokenizer import TextStream, Tokenizer


class WrittenText:
    """Text of a request's tokens, piece by piece; no piece is ever taken back.

    Text that may yet become a stop string is held back until it cannot any more.

    Parameters
    ----------
    tokenizer
        Of the tokens.
    stops
        Strings before which the text ends.
    num_free
        Tokens in whose text no stop string counts.

    Attributes
    ----------
    has_stopped
        Whether a stop string has come.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: tuple[str, ...] = (), num_free: int = 0
    ) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = stops
        self._num_free = num_free
        self._given: list[str] = []
        self._held = ""
        self.has_stopped = False

    @property
    def text(self) -> str:
        """All pieces so far."""
        return "".join(self._given)

    def push(self, token_id: int) -> str:
        """The piece that a token completes; empty where none does, and after a stop string."""
        piece = self._stream.push(token_id)
        if self._num_free:
            self._num_free -= 1
            return self._give(piece)
        if not self._stops:
            return self._give(piece)
        return self._search(piece) if piece else ""

    def finish(self) -> str:
        """What was still held back, once no token follows."""
        piece = self._stream.finish()
        if self.has_stopped:
            return ""
        if self._stops and not self._num_free:
            # The last bytes may complete a stop string, too.
            before = self._search(piece)
            if self.has_stopped:
                return before
            rest, self._held = self._held, ""
            return before + self._give(rest)
        return self._give(piece)

    def _search(self, piece: str) -> str:
        """Give what lies before a stop string, or cannot become part of one."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.has_stopped = True
            self._held = ""
            return self._give(text[: min(found)])
        num_held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - num_held :]
        return self._give(text[: len(text) - num_held])

    def _give(self, piece: str) -> str:
        if piece:
            self._given.append(piece)
        return piece


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with; never all of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
