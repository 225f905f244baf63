"""Prompts from text, from token ids, or from a named workload, and the tokenizer for text."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asv_bench.errors import Refused
from asv_bench.workloads.drive import Prompt
from asv_bench.workloads.named import HELLO, Workload

if TYPE_CHECKING:
    from engine import Tokenizer

DEFAULT_TEXT = "Hello"


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """Prompts that still need the size of the vocabulary, which the engine knows.

    `lengths` are in tokens. `build` takes the size. `note` is a sentence about the prompts for
    readers of the figures.
    """

    lengths: tuple[int, ...]
    build: Callable[[int], Sequence[Prompt]]
    note: str | None = None


def from_workload(workload: Workload) -> PromptPlan:
    """The prompts of a named workload."""
    return PromptPlan(tuple(length for length, _ in workload.requests), workload.prompts)


def from_ids(
    prompts: list[list[int]], *, unique: bool, wraps: bool = False, note: str | None = None
) -> PromptPlan:
    """Prompts of token ids; with `wraps`, ids of any size are brought into the vocabulary."""

    def build(vocab_size: int) -> list[list[int]]:
        if unique:
            return made_unique(prompts, vocab_size)
        return [[one % vocab_size for one in prompt] for prompt in prompts] if wraps else prompts

    return PromptPlan(tuple(map(len, prompts)), build, note)


def from_text(
    texts: Sequence[str], tokenizer: Tokenizer | None, *, unique: bool, pretok: bool, workers: int
) -> PromptPlan:
    """Prompts of texts. Without a tokenizer each word stands for a fixed token id.

    With `pretok` they are ids, made here by `workers` threads (0: in this one); without it they
    stay text.
    """
    if tokenizer is None:
        words = [[_word_id(word) for word in text.split()] for text in texts]
        note = "The model has no tokenizer: each word of a prompt stands for a fixed token id."
        return from_ids(words, unique=unique, wraps=True, note=note)
    if unique and not pretok:
        texts = [f"{text} {index}" for index, text in enumerate(texts)]
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        encode = tokenizer.encode
        encoded = list(pool.map(encode, texts) if workers else map(encode, texts))
    if pretok:
        return from_ids(encoded, unique=unique)
    return PromptPlan(tuple(map(len, encoded)), lambda _: texts)


def _word_id(word: str) -> int:
    return HELLO if word == DEFAULT_TEXT else zlib.crc32(word.encode())


def made_unique(prompts: Sequence[Sequence[int]], vocab_size: int) -> list[list[int]]:
    """The same lengths, no two prompts alike.

    The i-th prompt of a length is read as a number in base `vocab_size`, to which i is added.

    Raises Refused if there are more prompts of a length than different ones.
    """
    seen: Counter[int] = Counter()
    unique: list[list[int]] = []
    for prompt in prompts:
        carry = seen[len(prompt)]
        seen[len(prompt)] += 1
        if carry >= vocab_size ** len(prompt):
            raise Refused(
                f"--unique-prompts cannot be had: there are only {vocab_size ** len(prompt)} "
                f"different prompts of {len(prompt)} tokens; ask for fewer requests."
            )
        digits: list[int] = []
        for token_id in prompt:
            carry, digit = divmod(token_id % vocab_size + carry, vocab_size)
            digits.append(digit)
        unique.append(digits)
    return unique


def require_text(texts: Sequence[str]) -> None:
    """Raise Refused where a text can be no prompt."""
    for text in texts:
        if not text.strip():
            raise Refused("a prompt is empty; it must have at least one word.")
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused(f"the prompt {text!r} is no UTF-8; give text, or token ids.")


def read_numbers(flag: str, text: str, *, least: int) -> tuple[int, ...]:
    """Comma-separated whole numbers, each at least `least`."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        raise Refused(
            f"{flag} is {text!r}; it must be whole numbers of at least {least}, separated by "
            f"commas."
        )
    return numbers


def load_tokenizer(name: str, *, is_required: bool) -> Tokenizer | None:
    """The engine's tokenizer of a model as `EngineConfig` names it, a folder or a tokenizer.json.

    None where it brings none. Raises Refused if it is required then; an error of the engine if
    there is no such model, or its tokenizer cannot be read.
    """
    # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
    import engine

    loaded = engine.load_tokenizer(name)
    if loaded is not None:
        # The files are read on first use, which must come before the threads that share them.
        loaded.encode("")
    elif is_required:
        raise Refused(
            f"the tokenizer {name!r} cannot be loaded: no tokenizer comes with it; name a "
            "directory, a tokenizer.json or a hub id that has one."
        )
    return loaded
