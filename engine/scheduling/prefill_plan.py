"""What a prefill is to do: which known tokens of which requests, after which block copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.kv.blocks import BlockCopy
from engine.requests.request import Request


class PrefillChunk(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a request's known tokens, to be computed."""

    request: Request
    start: int
    end: int

    @property
    def completes_prompt(self) -> bool:
        """Whether the request's next token is sampled after this chunk."""
        return self.end == self.request.num_known_tokens


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Chunks to compute together, and the block copies that must come before them.

    `entering` are admitted requests of which so little is left to compute that decode steps do it.
    """

    chunks: list[PrefillChunk]
    entering: list[Request]
    copies: list[BlockCopy]

    @property
    def num_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)
