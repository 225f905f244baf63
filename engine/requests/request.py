"""A request on its way through the engine, and what its sender gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from engine.requests.params import SamplingParams

FinishReason: TypeAlias = Literal["length", "stop", "abort", "error"]


# There is one for every token. So it is made without a call of Python's, and is nothing that the
# garbage collector must look through: a caller who keeps them all would make its passes longer.
class TokenEvent(msgspec.Struct, frozen=True, gc=False):
    """One generated token, or the end of a request that ended without one.

    `index` counts the request's output tokens from 0. `time_s` is `time.perf_counter()` when the
    host saw the token. `finish_reason` is None until the request's last event. `token_id` is None
    where a request ends without a token: an abort, or an error.
    """

    request_id: int
    token_id: int | None
    index: int
    time_s: float
    finish_reason: FinishReason | None


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
    """A finished request: `text` is None where the model has no tokenizer."""

    prompt_ids: list[int]
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    timeline: Timeline


_NOTHING_GENERATED = np.empty(0, np.int32)
_NO_TIMES = np.empty(0, np.float64)


@dataclass(slots=True, eq=False)
class Request:
    """A request's own facts; while it runs, its counters live in the row it holds.

    `generated` and `token_times` are filled when the request leaves its row: at the end, or at a
    preemption, after which prompt and generated tokens are prefilled together. `num_known_tokens`
    is the length of both together.
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
        )
