"""From the events of a request to what its client reads: one reply, or a stream of chunks."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.requests.request import TokenEvent, TokenLogprobs
from engine.serving.errors import ApiError
from engine.serving.metrics import Metrics
from engine.text.tokenizer import Tokenizer

Told = tuple[int, TokenLogprobs]
"""A token and its logprobs."""

_FAILED = {
    "error": "The request failed: the device has too little memory for it, or its logits are NaN.",
    "abort": "The request was aborted: the server is closing.",
}


@dataclass(slots=True)
class Choice:
    """One answer, so far.

    `text` is what chunks have not brought yet, and `told` the logprobs that belong to it. `offset`
    counts the characters of the tokens that logprobs were told of, which `characters` makes of
    their bytes.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    num_tokens: int = 0
    offset: int = 0
    characters: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    has_begun: bool = False
    has_text: bool = False
    finish_reason: str | None = None
    last_s: float = 0.0


class Shape(Protocol):
    """What one endpoint's replies look like."""

    prefix: str
    whole: str
    part: str

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A whole answer."""

    def delta(self, choice: Choice) -> dict[str, Any]:
        """What has come of it since the last time."""


class CompletionShape:
    """/v1/completions."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def choice(self, choice: Choice) -> dict[str, Any]:
        """As `Shape`."""
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice) if choice.told else None,
            "finish_reason": choice.finish_reason,
        }

    delta = choice

    def _logprobs(self, choice: Choice) -> dict[str, Any]:
        tokens = [_spelled(self._tokenizer, token_id) for token_id, _ in choice.told]
        offsets = []
        for token_id, _ in choice.told:
            offsets.append(choice.offset)
            raw = b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)
            choice.offset += len(choice.characters.decode(raw))
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for _, one in choice.told],
            "top_logprobs": [
                {_spelled(self._tokenizer, token_id): logprob for token_id, logprob in one.top}
                for _, one in choice.told
            ],
            "text_offset": offsets,
        }


class ChatShape:
    """/v1/chat/completions."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def choice(self, choice: Choice) -> dict[str, Any]:
        """As `Shape`."""
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.index, "message": message} | self._rest(choice)

    def delta(self, choice: Choice) -> dict[str, Any]:
        """As `Shape`; the first says whose words they are."""
        delta = {"content": choice.text}
        if not choice.has_begun:
            delta = {"role": "assistant"} | delta
        return {"index": choice.index, "delta": delta} | self._rest(choice)

    def _rest(self, choice: Choice) -> dict[str, Any]:
        logprobs = None
        if choice.told:
            content = [
                self._entry(token_id, one.logprob)
                | {"top_logprobs": [self._entry(*pair) for pair in one.top]}
                for token_id, one in choice.told
            ]
            logprobs = {"content": content, "refusal": None}
        return {"logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)
        token = _spelled(self._tokenizer, token_id)
        return {"token": token, "logprob": logprob, "bytes": list(raw)}


class Answer:
    """What a request is answered: as many choices as were submitted.

    Parameters
    ----------
    shape
        Of the endpoint.
    model
        The name that replies have.
    request_ids
        Of the choices, in order.
    num_prompt_tokens
        Of all prompts together.
    tokenizer
        Writes the text of whole replies, unless events bring it.
    metrics
        Where tokens and ends are counted.
    submitted_s
        `time.perf_counter()` when the request came.
    """

    def __init__(
        self,
        shape: Shape,
        model: str,
        request_ids: Sequence[int],
        *,
        num_prompt_tokens: int,
        tokenizer: Tokenizer | None,
        metrics: Metrics,
        submitted_s: float,
    ) -> None:
        self._shape = shape
        self._choices = {one: Choice(index) for index, one in enumerate(request_ids)}
        self._num_prompt_tokens = num_prompt_tokens
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._submitted_s = submitted_s
        self._head = {
            "id": f"{shape.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    @property
    def is_whole(self) -> bool:
        """Whether every choice has come to its end."""
        return all(choice.finish_reason is not None for choice in self._choices.values())

    @property
    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        made = sum(choice.num_tokens for choice in self._choices.values())
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self._num_prompt_tokens + made,
        }

    def begin_with(self, texts: Sequence[str]) -> None:
        """Let the choices' texts begin with these, as `echo` asks."""
        for choice, text in zip(self._choices.values(), texts, strict=True):
            choice.text = text

    def add(self, events: Sequence[TokenEvent]) -> list[Choice]:
        """Take in events; the choices that they belong to.

        Raises
        ------
        ApiError
            A request failed.
        """
        met = {}
        for event in events:
            choice = met[event.request_id] = self._choices[event.request_id]
            if event.token_id is not None:
                self._count(choice, event.time_s)
                choice.token_ids.append(event.token_id)
                if event.logprobs is not None:
                    choice.told.append((event.token_id, event.logprobs))
            if event.text is not None:
                choice.has_text = True
                choice.text += event.text
            if event.finish_reason is not None:
                choice.finish_reason = event.finish_reason
                self._metrics.ends[event.finish_reason] += 1
                if event.finish_reason in _FAILED:
                    raise ApiError(500, _FAILED[event.finish_reason])
        return list(met.values())

    def count_aborted(self) -> None:
        """Count the choices that nobody waits for any more, before their ends."""
        unfinished = [one for one in self._choices.values() if one.finish_reason is None]
        self._metrics.ends["abort"] += len(unfinished)

    def reply(self) -> dict[str, Any]:
        """The whole answer."""
        for choice in self._choices.values():
            if not choice.has_text and self._tokenizer is not None:
                choice.text += self._tokenizer.decode(choice.token_ids)
        choices = [self._shape.choice(choice) for choice in self._choices.values()]
        return self._as(self._shape.whole, choices, self.usage)

    def chunks(
        self, choices: Sequence[Choice], *, with_usage: bool, continuously: bool
    ) -> Iterator[dict[str, Any]]:
        """What has come of some choices; each thing is told once."""
        for choice in choices:
            chunk = self._as(self._shape.part, [self._shape.delta(choice)], None)
            if continuously:
                chunk["usage"] = self.usage
            elif not with_usage:
                del chunk["usage"]
            choice.has_begun = True
            choice.text = ""
            choice.told.clear()
            choice.token_ids.clear()
            yield chunk

    def last_chunk(self) -> dict[str, Any]:
        """The one that says how many tokens there were."""
        return self._as(self._shape.part, [], self.usage)

    def _count(self, choice: Choice, time_s: float) -> None:
        choice.num_tokens += 1
        self._metrics.num_new_tokens += 1
        if choice.num_tokens == 1:
            self._metrics.ttft.observe(time_s - self._submitted_s)
        else:
            self._metrics.itl.observe(time_s - choice.last_s)
        choice.last_s = time_s

    def _as(
        self, kind: str, choices: list[dict[str, Any]], usage: dict[str, int] | None
    ) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": choices, "usage": usage}


def _spelled(tokenizer: Tokenizer | None, token_id: int) -> str:
    """A token as text; bytes that are no whole character in the way in which OpenAI writes them."""
    if tokenizer is None:
        return f"token_id:{token_id}"
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
