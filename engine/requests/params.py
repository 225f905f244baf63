"""How the next token of a request is chosen, and when the request ends."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError
from engine.numbers import is_truth_value, real_number, whole_number

_MOST_TEMPERATURE = 3.4028234e38
"""The device divides in float32, where more would be infinite."""

MOST_STOP_TOKEN_IDS = 256
"""Every token of a step is compared with as many ids as the request with most of them brings."""


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
                f"top_k is {self.top_k!r}; it must be 0 (no limit) or a positive whole number."
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
        ):
            object.__setattr__(self, name, value)

    def _checked_stop_ids(self) -> tuple[int, ...]:
        try:
            given = tuple(self.stop_token_ids)
        except TypeError:
            raise RequestError(
                f"stop_token_ids is {self.stop_token_ids!r}; it must be a sequence of token ids."
            ) from None
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
