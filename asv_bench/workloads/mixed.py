"""Lengths of the requests of nano-vllm's public benchmark, `mixed`."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

_REQUESTS = 256
_SHORTEST, _LONGEST = 100, 1024
_LAST_TOKEN = 10_000
_TOKEN_BITS = _LAST_TOKEN.bit_length()


class MixedLengths(NamedTuple):
    """Tokens of each request's prompt, and new ones."""

    prompts: tuple[int, ...]
    new: tuple[int, ...]


@cache
def mixed_lengths() -> MixedLengths:
    """As its bench.py draws them, with seed 0: all prompts with their tokens, then new lengths."""
    random = Random(0)
    prompts = tuple(_prompt_length(random) for _ in range(_REQUESTS))
    return MixedLengths(
        prompts, tuple(random.randint(_SHORTEST, _LONGEST) for _ in range(_REQUESTS))
    )


def _prompt_length(random: Random) -> int:
    """A length, past the draws of as many tokens.

    What `randint` draws for a token is drawn here without it, which takes a quarter of the time:
    every command knows the workloads.
    """
    length = drawn = random.randint(_SHORTEST, _LONGEST)
    while drawn:
        drawn -= random.getrandbits(_TOKEN_BITS) <= _LAST_TOKEN
    return length
