"""What a prompt must be to enter the engine: checked whole before anything is changed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import RequestError, TooLongError
from engine.numbers import is_truth_value, whole_number
from engine.requests.params import SamplingParams
from engine.text.tokenizer import Tokenizer

Prompt: TypeAlias = Sequence[int] | npt.NDArray[np.integer] | str
CheckedPrompt: TypeAlias = tuple[npt.NDArray[np.int32], SamplingParams]

_SHORT = 16
"""Up to so many numbers are looked at in less time by themselves than as an array."""


class Intake:
    """Turns prompts into token ids and refuses what could never run.

    Parameters
    ----------
    vocab_size
        Token ids run from 0 to one below it.
    max_model_len
        Tokens of one sequence that the model may read: prompt and output but for its last token.
    cache_tokens
        Tokens that the whole KV cache holds.
    tokenizer
        For prompts that are text; None where the model has none.
    """

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int,
        cache_tokens: int,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._vocab_size = vocab_size
        # An array, which is compared in half the time that a number of Python's takes.
        self._beyond_ids = np.array(vocab_size, np.uint32)
        self._max_model_len = max_model_len
        self._cache_tokens = cache_tokens
        self._tokenizer = tokenizer

    def check(self, prompt: Prompt, params: SamplingParams | None) -> CheckedPrompt:
        """The prompt's token ids, int32 [tokens], and its parameters.

        Raises
        ------
        RequestError
            With a sentence, when the request can never run; `TooLongError` where it is too long.
        """
        if params is None:
            params = SamplingParams()
        elif not isinstance(params, SamplingParams):
            raise RequestError(
                f"params is {params!r}; it must be a SamplingParams, or None for its defaults."
            )
        token_ids = self._token_ids(prompt)
        for token_id in params.stop_token_ids:
            if token_id >= self._vocab_size:
                raise RequestError(
                    f"Stop token {token_id} is not in the vocabulary: ids run from 0 to "
                    f"{self._vocab_size - 1}."
                )
        if params.stop:
            self.require_text("stop holds strings")
        total = len(token_ids) + params.max_new_tokens
        # The last new token is never read: it takes no position and no place in the cache.
        num_read = total - 1
        if num_read > self._max_model_len:
            raise TooLongError(
                f"{len(token_ids)} prompt tokens and {params.max_new_tokens} new ones make "
                f"{total}, beyond the {self._max_model_len} that a sequence may have, not counting "
                "its last new token: shorten the prompt or lower max_new_tokens."
            )
        if num_read > self._cache_tokens:
            raise TooLongError(
                f"{len(token_ids)} prompt tokens and {params.max_new_tokens} new ones make "
                f"{total}, but the whole KV cache holds {self._cache_tokens}, not counting the "
                "last new token: raise num_kv_blocks, shorten the prompt or lower max_new_tokens."
            )
        return token_ids, params

    def check_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[CheckedPrompt]:
        """`check` for each prompt, with one `params` for all or one for each.

        Raises
        ------
        RequestError
            When any prompt is refused, or the two lengths differ.
        """
        if isinstance(prompts, str):
            raise RequestError(
                "prompts is one string; it must be a sequence of prompts: put it in a list."
            )
        if not isinstance(prompts, Iterable):
            raise RequestError(f"prompts is {prompts!r}; it must be a sequence of prompts.")
        prompts = list(prompts)
        if prompts and all(isinstance(prompt, (int, np.integer)) for prompt in prompts):
            raise RequestError(
                "prompts is one sequence of token ids; it must be a sequence of prompts: put it "
                "in a list."
            )
        each: list[SamplingParams | None]
        if params is None or isinstance(params, SamplingParams):
            each = [params] * len(prompts)
        elif not isinstance(params, Iterable):
            raise RequestError(
                f"params is {params!r}; it must be SamplingParams, or a list of them."
            )
        else:
            each = list(params)
            if len(each) != len(prompts):
                raise RequestError(
                    f"There are {len(prompts)} prompts, but {len(each)} params: give one for "
                    "all, or one for each."
                )
        return [
            choice
            for prompt, one in zip(prompts, each, strict=True)
            for choice in choices_of(*self.check(prompt, one))
        ]

    def require_text(self, why: str) -> Tokenizer:
        """The tokenizer, which can decode.

        Raises
        ------
        RequestError
            There is none, and `why` that matters.
        ModelError
            Its files are damaged, or need a package that is not installed.
        """
        if self._tokenizer is None:
            raise RequestError(f"{why}, but the model has no tokenizer: do with token ids.")
        # Its files are read now rather than in the midst of a step.
        self._tokenizer.prepare()
        return self._tokenizer

    def _token_ids(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise RequestError(
                    "The prompt is text, but the model has no tokenizer: pass token ids."
                )
            prompt = self._tokenizer.encode(prompt)
        if type(prompt) is list and prompt:
            ids = self._ids_of_list(prompt)
            if ids is not None:
                return ids
        try:
            given = np.asarray(prompt)
        except (TypeError, ValueError):
            given = np.empty((0, 0))
        if given.ndim == 1 and given.size == 0:
            raise RequestError("The prompt is empty; it must hold at least one token.")
        if given.ndim == 1 and given.dtype == object:
            given = self._ids_of_objects(given)
        if given.ndim != 1 or given.dtype.kind not in "iu" or _holds_truth_value(prompt, given):
            raise RequestError(
                "The prompt must be text or a flat sequence of whole numbers, the token ids, "
                f"not {_shortened(prompt)}."
            )
        is_outside = given.astype(np.int64).view(np.uint64) >= self._vocab_size
        if np.count_nonzero(is_outside):
            raise self._not_in_vocabulary(given[is_outside][0])
        return given.astype(np.int32)

    def _ids_of_objects(self, given: npt.NDArray[np.object_]) -> npt.NDArray[Any]:
        """Whole numbers, also such as no other array holds; anything else as it came."""
        numbers = [number for one in given if (number := whole_number(one)) is not None]
        if len(numbers) < len(given):
            return given
        for number in numbers:
            if not 0 <= number < self._vocab_size:
                raise self._not_in_vocabulary(number)
        return np.array(numbers, np.int64)

    def _not_in_vocabulary(self, token_id: int) -> RequestError:
        return RequestError(
            f"Token id {token_id} is not in the vocabulary: ids run from 0 to "
            f"{self._vocab_size - 1}."
        )

    def _ids_of_list(self, prompt: list[int]) -> npt.NDArray[np.int32] | None:
        """A list of token ids as int32 [tokens], in at most two thirds of numpy's time.

        None for anything else, which numpy must look at.
        """
        if len(prompt) <= _SHORT:
            for token_id in prompt:
                if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
                    return None
            return np.array(prompt, np.int32)
        try:
            ids = np.array(array("i", prompt), np.int32)
        except (TypeError, OverflowError):
            return None
        # `array` takes a bool for a number.
        if _holds_truth_value(prompt, ids):
            return None
        # As unsigned numbers, ids below 0 are beyond every vocabulary: one comparison.
        return None if np.count_nonzero(ids.view(np.uint32) >= self._beyond_ids) else ids


def choices_of(prompt_ids: npt.NDArray[np.int32], params: SamplingParams) -> list[CheckedPrompt]:
    """The `n` requests of one prompt, each of which has a seed of its own."""
    if params.n == 1:
        return [(prompt_ids, params)]
    return [
        (prompt_ids, replace(params, n=1, seed=_seed_of(params.seed, choice)))
        for choice in range(params.n)
    ]


def _seed_of(seed: int | None, choice: int) -> int | None:
    """A 64-bit number for each choice; that of the first is the seed itself."""
    if seed is None:
        return None
    return (seed + choice * 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63


def _holds_truth_value(
    prompt: Prompt, ids: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]
) -> bool:
    """Whether any of the prompt's `ids`, 0 or 1 as they stand in an array, is False or True."""
    if not isinstance(prompt, (list, tuple)):
        return False
    return any(is_truth_value(prompt[place]) for place in np.flatnonzero(ids <= 1).tolist())


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
