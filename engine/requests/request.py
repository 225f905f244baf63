"""A request on its way through the engine, and what its sender gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from engine.requests.params import SamplingParams
from engine.text.stops import WrittenText

FinishReason: TypeAlias = Literal["length", "stop", "abort", "error"]


class TokenLogprobs(NamedTuple):
    """How probable the model held a token, and the likeliest of its place, in natural logarithms.

    `top` holds pairs of a token id and its logarithm, the likeliest first, as many as were asked
    for.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


# There is one for every token. So it is made without a call of Python's, and is nothing that the
# garbage collector must look through: a caller who keeps them all would make its passes longer.
class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One generated token, or the end of a request that ended without one.

    `index` counts the request's output tokens from 0. `time_s` is `time.perf_counter()` when the
    host saw the token. `finish_reason` is None until the request's last event. `token_id` is None
    where a request ends without a token: an abort, or an error.

    `text` is what the token completes of the output's text, whole characters only, where text was
    asked for; all of them together are the text. `logprobs` are there where the request asked.
    """

    request_id: int
    token_id: int | None
    index: int
    time_s: float
    finish_reason: FinishReason | None
    text: str | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """When a request was submitted and when each of its tokens was seen, in seconds.

    Times are `time.perf_counter()`. `token_times_s` is float64 [tokens].
    """

    submitted_s: float
    token_times_s: npt.NDArray[np.float64]

    @property
    def ttft_s(self) -> float:
        """Time to first token: submit to first token event. NaN without tokens."""
        if not len(self.token_times_s):
            return float("nan")
        return float(self.token_times_s[0] - self.submitted_s)

    @property
    def tpot_s(self) -> float:
        """Time per output token: (last - first) / (tokens - 1). NaN below two tokens."""
        if len(self.token_times_s) < 2:
            return float("nan")
        elapsed = self.token_times_s[-1] - self.token_times_s[0]
        return float(elapsed / (len(self.token_times_s) - 1))

    @property
    def itl_s(self) -> npt.NDArray[np.float64]:
        """Inter-token latencies: gaps between consecutive tokens, float64 [tokens - 1]."""
        return np.diff(self.token_times_s)

    @property
    def latency_s(self) -> float:
        """Submit to last token. NaN without tokens."""
        if not len(self.token_times_s):
            return float("nan")
        return float(self.token_times_s[-1] - self.submitted_s)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: `text` is None where the model has no tokenizer.

    `logprobs` has an entry for each of the `token_ids`, where the request asked for them.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    timeline: Timeline
    logprobs: list[TokenLogprobs] | None = None


_NOTHING_GENERATED = np.empty(0, np.int32)
_NO_TIMES = np.empty(0, np.float64)


@dataclass(slots=True, eq=False)
class Shaping:
    """What a request asks of its logits beyond temperature, `top_k` and `top_p`.

    `least_length` is how long prompt and output must be before a token of `stop_ids` may be chosen.
    `slot` is where the device keeps its state, and belongs to `engine.worker.shaper`.
    """

    params: SamplingParams
    least_length: int
    stop_ids: tuple[int, ...]
    slot: int | None = None

    @classmethod
    def of(
        cls, params: SamplingParams, num_prompt: int, stop_ids: tuple[int, ...]
    ) -> Shaping | None:
        """That of a request; None where it asks for nothing of the kind."""
        least = num_prompt + params.min_new_tokens if stop_ids else 0
        one = cls(params, least if params.min_new_tokens else 0, stop_ids)
        return one if one.adjusts or params.logprobs is not None else None

    @property
    def counts(self) -> bool:
        """Whether the device must keep which tokens there are already, or must not come yet."""
        return self.least_length > 0 or self.params.has_penalties

    @property
    def adjusts(self) -> bool:
        """Whether another token may come than from the logits as they are."""
        # Among tokens that are not drawn min_p keeps the likeliest.
        return self.counts or (self.params.min_p > 0 and self.params.temperature > 0)


@dataclass(slots=True, eq=False)
class Request:
    """A request's own facts; while it runs, its counters live in the row it holds.

    `generated` and `token_times` are filled when the request leaves its row: at the end, or at a
    preemption, after which prompt and generated tokens are prefilled together. `num_known_tokens`
    is the length of both together.

    `shaping` and `written` are None for a request whose tokens are chosen from the logits as they
    are, and for one whose text nobody reads before its end.
    """

    request_id: int
    prompt: npt.NDArray[np.int32]
    params: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]
    submitted_s: float
    generated: npt.NDArray[np.int32] = field(default_factory=lambda: _NOTHING_GENERATED)
    token_times: npt.NDArray[np.float64] = field(default_factory=lambda: _NO_TIMES)
    finish_reason: FinishReason | None = None
    row: int | None = None
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    admission_order: int = -1
    shaping: Shaping | None = None
    written: WrittenText | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_known_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_known_tokens = len(self.prompt) + len(self.generated)

    @property
    def known_tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and what was generated before the request last took a row, int32 [tokens]."""
        if not len(self.generated):
            return self.prompt
        return np.concatenate([self.prompt, self.generated])

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose keys and values are still to be computed, or to be found cached."""
        return self.num_known_tokens - self.num_computed

    @property
    def is_noted(self) -> bool:
        """Whether its tokens come with more than themselves: text, or logprobs."""
        return self.written is not None or self.params.logprobs is not None

    def completion(self, text: str | None) -> Completion:
        """The request as its sender sees it; only valid once it has finished."""
        if self.finish_reason is None:
            raise ValueError(f"Request {self.request_id} has not finished.")
        return Completion(
            prompt_ids=self.prompt.tolist(),
            token_ids=self.generated.tolist(),
            text=text,
            finish_reason=self.finish_reason,
            timeline=Timeline(self.submitted_s, self.token_times),
            logprobs=None if self.params.logprobs is None else self.logprobs,
        )
