"""How the next token of a request is chosen, and when the request ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from engine.errors import RequestError
from engine.numbers import is_truth_value, real_number, whole_number

_MOST_TEMPERATURE = 3.4028234e38
"""The device divides in float32, where more would be infinite."""

MOST_STOP_TOKEN_IDS = 256
"""Every token of a step is compared with as many ids as the request with most of them brings."""

MOST_STOPS = 16
"""A token's text is searched for each of them."""

MOST_LOGPROBS = 20
"""The likeliest tokens of a place, that a row has room to report."""

MOST_CHOICES = 128

_MOST_PENALTY = 1e4


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and ending rules of one request.

    Numbers and truth values may be numpy's; they are kept as Python's own.

    Parameters
    ----------
    max_new_tokens
        Tokens to generate at most, at least 1.
    temperature
        0 takes the likeliest token (greedy); above 0, logits are divided by it before sampling.
    top_k
        Sample among the `top_k` likeliest tokens only; 0 means all. Applied before `top_p`.
    top_p
        Sample among the fewest likeliest tokens whose probabilities reach `top_p`, in (0, 1].
    seed
        Fixes the random numbers of this request, whatever else is in the batch. So the same prompt,
        parameters and seed give the same tokens, as far as logits are the same: in half precision
        their last bits depend on how many rows are computed at once, which tips a draw now and
        then. None derives one from the engine's seed and the request id.
    stop_token_ids
        Generation ends after any of these, at most `MOST_STOP_TOKEN_IDS` different ones; the token
        itself is part of the output.
    ignore_eos
        Go on after the model's end-of-sequence token, as benchmarks do.
    min_new_tokens
        Before so many new tokens neither the end-of-sequence token nor a stop token can be chosen,
        and no stop string ends the request.
    stop
        A string, or at most `MOST_STOPS`: generation ends when the new text holds one, and the text
        ends before it. `token_ids` keep the tokens that made it. With a tokenizer that cleans up
        whole texts only the text ends there, as it is not known before.
    min_p
        Sample only among tokens that are at least `min_p` times as probable as the likeliest, after
        the temperature and before `top_k`; 0 keeps all.
    presence_penalty, frequency_penalty
        Taken off the logit of each token that is in the output already: once, and for each time
        that it is.
    repetition_penalty
        Divides the logit, where it is positive, of each token that is in the prompt or the output
        already, and multiplies it where it is negative; 1 changes nothing. It comes first.
    logprobs
        Report for each token how probable the model held it, and so many of the likeliest tokens of
        its place, at most `MOST_LOGPROBS`: natural logarithms, from the model's own logits, before
        penalties and temperature. None reports nothing.
    n
        Answers to one prompt. With a `seed` the first is the only answer that `n=1` gives; the
        others' seeds follow from it.

    Raises
    ------
    RequestError
        When a value is outside its range.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    stop: str | tuple[str, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        max_new_tokens = whole_number(self.max_new_tokens)
        if max_new_tokens is None or max_new_tokens < 1:
            raise RequestError(
                f"max_new_tokens is {self.max_new_tokens!r}; it must be a whole number of "
                "at least 1."
            )
        temperature = real_number(self.temperature)
        if temperature is None or not 0.0 <= temperature <= _MOST_TEMPERATURE:
            raise RequestError(
                f"temperature is {self.temperature!r}; it must be 0 (greedy) or a positive number "
                "that float32 holds."
            )
        top_k = whole_number(self.top_k)
        if top_k is None or not 0 <= top_k < 2**31:
            raise RequestError(
                f"top_k is {self.top_k!r}; it must be 0 (no limit) or a positive whole number "
                "below 2**31."
            )
        top_p = real_number(self.top_p)
        if top_p is None or not 0.0 < top_p <= 1.0:
            raise RequestError(f"top_p is {self.top_p!r}; it must be above 0 and at most 1.")
        seed = None if self.seed is None else whole_number(self.seed)
        if self.seed is not None and (seed is None or not -(2**63) <= seed < 2**63):
            raise RequestError(f"seed is {self.seed!r}; it must be None or a 64-bit whole number.")
        if not is_truth_value(self.ignore_eos):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}; it must be True or False.")
        for name, value in (
            ("max_new_tokens", max_new_tokens),
            ("temperature", temperature),
            ("top_k", top_k),
            ("top_p", top_p),
            ("seed", seed),
            ("stop_token_ids", self._checked_stop_ids()),
            ("ignore_eos", bool(self.ignore_eos)),
            ("stop", self._checked_stops()),
            ("logprobs", self._checked_logprobs()),
        ):
            object.__setattr__(self, name, value)
        self._keep_whole("min_new_tokens", 0, max_new_tokens)
        self._keep_whole("n", 1, MOST_CHOICES)
        self._keep_real("min_p", 0.0, 1.0)
        self._keep_real("presence_penalty", -_MOST_PENALTY, _MOST_PENALTY)
        self._keep_real("frequency_penalty", -_MOST_PENALTY, _MOST_PENALTY)
        self._keep_real("repetition_penalty", 1 / _MOST_PENALTY, _MOST_PENALTY)

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple, which it is once it has been checked."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens before a place change its logits."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    def _keep_whole(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        number = whole_number(value)
        if number is None or not least <= number <= most:
            raise RequestError(
                f"{name} is {value!r}; it must be a whole number of {least} to {most}."
            )
        object.__setattr__(self, name, number)

    def _keep_real(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        number = real_number(value)
        if number is None or not least <= number <= most:
            raise RequestError(f"{name} is {value!r}; it must be from {least:g} to {most:g}.")
        object.__setattr__(self, name, number)

    def _checked_logprobs(self) -> int | None:
        if self.logprobs is None:
            return None
        number = whole_number(self.logprobs)
        if number is None or not 0 <= number <= MOST_LOGPROBS:
            raise RequestError(
                f"logprobs is {self.logprobs!r}; it must be None or a whole number of 0 to "
                f"{MOST_LOGPROBS}."
            )
        return number

    def _checked_stops(self) -> tuple[str, ...]:
        given = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(given, (list, tuple)) or not all(
            isinstance(one, str) and one for one in given
        ):
            raise RequestError(
                f"stop is {self.stop!r}; it must be a string or a list of strings, none empty."
            )
        if len(given) > MOST_STOPS:
            raise RequestError(
                f"stop holds {len(given)} strings; it may hold {MOST_STOPS} at most."
            )
        return tuple(dict.fromkeys(given))

    def _checked_stop_ids(self) -> tuple[int, ...]:
        asked, given = self.stop_token_ids, None
        # An array of no dimension says that it can be gone through, and cannot.
        with suppress(TypeError):
            given = tuple(asked)
        if given is None or isinstance(asked, (str, bytes, bytearray)):
            raise RequestError(f"stop_token_ids is {asked!r}; it must be a sequence of token ids.")
        stop_ids: dict[int, None] = {}
        for token in given:
            stop_id = whole_number(token)
            if stop_id is None or not 0 <= stop_id < 2**31:
                raise RequestError(f"stop_token_ids holds {token!r}; it must hold token ids only.")
            stop_ids[stop_id] = None
        if len(stop_ids) > MOST_STOP_TOKEN_IDS:
            raise RequestError(
                f"stop_token_ids holds {len(stop_ids)} different ids; it may hold "
                f"{MOST_STOP_TOKEN_IDS} at most."
            )
        return tuple(stop_ids)
