"""One request's answer, gathered from its events."""

from __future__ import annotations

import numpy as np

from engine.requests.request import Completion, Timeline, TokenEvent, TokenLogprobs
from engine.text.tokenizer import Tokenizer


class GatheredAnswer:
    """The events of one request, gathered."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._times: list[float] = []
        self._logprobs: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self._last: TokenEvent | None = None

    def add(self, event: TokenEvent) -> None:
        """Take in one event, in order."""
        self._last = event
        if event.token_id is not None:
            self._token_ids.append(event.token_id)
            self._times.append(event.time_s)
        if event.logprobs is not None:
            self._logprobs.append(event.logprobs)
        if event.text is not None:
            self._texts.append(event.text)

    def completion(
        self,
        tokenizer: Tokenizer | None,
        prompt_ids: list[int],
        submitted_s: float,
        *,
        reports: bool,
    ) -> Completion:
        """All of it; the last event has come."""
        if self._last is None or self._last.finish_reason is None:
            raise ValueError("The request has not finished.")
        text = None
        if self._last.text is not None:
            text = "".join(self._texts)
        elif tokenizer is not None:
            text = tokenizer.decode(self._token_ids)
        return Completion(
            prompt_ids=prompt_ids,
            token_ids=self._token_ids,
            text=text,
            finish_reason=self._last.finish_reason,
            timeline=Timeline(submitted_s, np.array(self._times, np.float64)),
            logprobs=self._logprobs if reports else None,
        )
