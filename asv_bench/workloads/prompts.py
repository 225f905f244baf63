"""Prompts from text, from token ids, or from a named workload, and the tokenizer for text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asv_bench.errors import Refused
from asv_bench.workloads.drive import Prompt
from asv_bench.workloads.named import HELLO, Workload

if TYPE_CHECKING:
    from engine import Tokenizer

Encode = Callable[[str], list[int]]
DEFAULT_TEXT = "Hello"


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """Prompts that still need the size of the vocabulary, which the engine knows.

    `lengths` are in tokens. `build` takes the size. `note` is a sentence about the prompts for
    readers of the figures.
    """

    lengths: tuple[int, ...]
    build: Callable[[int], list[Prompt]]
    note: str | None = None


def from_workload(workload: Workload) -> PromptPlan:
    """The prompts of a named workload."""

    def build(vocab_size: int) -> list[Prompt]:
        return list(workload.prompts(vocab_size))

    return PromptPlan(tuple(length for length, _ in workload.requests), build)


def from_token_ids(
    base: Sequence[int], repeats: Sequence[int], count: int, *, unique: bool
) -> PromptPlan:
    """`count` prompts of the ids in `base`, repeated as `repeats` deals out."""
    prompts = [list(base) * repeats[index % len(repeats)] for index in range(count)]

    def build(vocab_size: int) -> list[Prompt]:
        return list(made_unique(prompts, vocab_size) if unique else prompts)

    return PromptPlan(tuple(len(prompt) for prompt in prompts), build)


def from_text(
    texts: Sequence[str],
    repeats: Sequence[int],
    count: int,
    *,
    unique: bool,
    encode: Encode | None,
    pretok: bool,
    workers: int,
) -> PromptPlan:
    """`count` prompts of the texts in turn, repeated as `repeats` deals out.

    Without a tokenizer (`encode` is None) each word stands for a fixed token id.
    With `pretok` the prompts are ids, made here by `workers` threads (0: in this one); without
    it they stay text.
    """
    repeated = [
        " ".join([texts[index % len(texts)]] * repeats[index % len(repeats)])
        for index in range(count)
    ]
    if encode is None:
        return _from_words(repeated, unique=unique)
    if unique:
        repeated = [f"{text} {index}" for index, text in enumerate(repeated)]
    from engine import KvtrailError

    try:
        with ThreadPoolExecutor(max(workers, 1)) as pool:
            encoded = list(pool.map(encode, repeated) if workers else map(encode, repeated))
    except KvtrailError as error:
        raise Refused(f"a prompt cannot be tokenized: {error}") from error
    ready: list[Prompt] = list(encoded) if pretok else list(repeated)
    return PromptPlan(tuple(len(ids) for ids in encoded), lambda _: list(ready))


def _from_words(texts: Sequence[str], *, unique: bool) -> PromptPlan:
    def build(vocab_size: int) -> list[Prompt]:
        prompts = [[word_id(word, vocab_size) for word in text.split()] for text in texts]
        return list(made_unique(prompts, vocab_size) if unique else prompts)

    return PromptPlan(
        tuple(len(text.split()) for text in texts),
        build,
        "The model has no tokenizer: each word of a prompt stands for a fixed token id.",
    )


def word_id(word: str, vocab_size: int) -> int:
    """The fixed id that stands for a word where there is no tokenizer."""
    return (HELLO if word == DEFAULT_TEXT else zlib.crc32(word.encode())) % vocab_size


def made_unique(prompts: Sequence[list[int]], vocab_size: int) -> list[list[int]]:
    """The same lengths, no two prompts alike.

    The i-th prompt of a length is read as a number in base `vocab_size`, to which i is added.

    Raises Refused if there are more prompts of a length than different ones.
    """
    seen: dict[int, int] = {}
    unique: list[list[int]] = []
    for prompt in prompts:
        index = seen.setdefault(len(prompt), 0)
        seen[len(prompt)] = index + 1
        if index >= vocab_size ** len(prompt):
            raise Refused(
                f"--unique-prompts cannot be had: there are only {vocab_size ** len(prompt)} "
                f"different prompts of {len(prompt)} tokens; ask for fewer requests."
            )
        digits: list[int] = []
        carry = index
        for token_id in prompt:
            carry, digit = divmod(token_id % vocab_size + carry, vocab_size)
            digits.append(digit)
        unique.append(digits)
    return unique


def read_texts(prompt: str | None, prompts: Sequence[str] | None) -> list[str] | None:
    """The texts that `--prompt` and `--prompts` name; None where neither is given."""
    if prompt is not None and prompts:
        raise Refused("--prompt and --prompts both say what is submitted; give one of them.")
    texts: list[str] = [] if prompt is None else [prompt]
    for entry in prompts or ():
        texts += _lines(Path(entry[1:])) if entry.startswith("@") else [entry]
    if prompt is None and not prompts:
        return None
    if not texts or any(not text.strip() for text in texts):
        raise Refused("a prompt is empty; it must have at least one word.")
    for text in texts:
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused(f"the prompt {text!r} is no UTF-8; give text, or token ids.")
    return texts


def _lines(path: Path) -> list[str]:
    """The lines of a file that hold any text; \\n or \\r\\n ends one, and a BOM is no text."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the prompts in {path} cannot be read: {error}.") from error
    return [line for line in re.split(r"\r?\n", text) if line.strip()]


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

    None where it brings none. Raises Refused if there is no such model, its tokenizer cannot be
    read, or there is none and it is required.
    """
    # Not at the top: the engine reads KVTRAIL_NVTX when it is imported.
    import engine

    try:
        loaded = engine.load_tokenizer(name)
        if loaded is not None:
            # The files are read on first use, which must come before the threads that share them.
            loaded.encode("")
    except engine.KvtrailError as error:
        raise Refused(f"the tokenizer {name!r} cannot be loaded: {error}") from error
    if loaded is None and is_required:
        raise Refused(
            f"the tokenizer {name!r} cannot be loaded: no tokenizer comes with it; name a "
            "directory, a tokenizer.json or a hub id that has one."
        )
    return loaded
