"""How busy an engine is."""

from __future__ import annotations

from typing import NamedTuple


class EngineLoad(NamedTuple):
    """How busy an engine is.

    Attributes
    ----------
    num_running
        Unfinished requests that hold a row.
    num_waiting
        Those that do not.
    cache_usage
        The share of the KV blocks that both hold, of 1.
    num_prompt_tokens
        Tokens of all requests that were ever admitted.
    num_cached_tokens
        Those of them that the prefix cache had.
    """

    num_running: int
    num_waiting: int
    cache_usage: float
    num_prompt_tokens: int
    num_cached_tokens: int
