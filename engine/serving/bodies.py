"""The bodies of requests: their fields, and the sampling parameters that these mean.

Fields have the names of OpenAI's and, beyond those, of vLLM's. A field of theirs that would change
an answer and that is not served is refused; others, such as `user`, are passed over.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar

import msgspec

from engine.errors import RequestError, TooLongError
from engine.requests.params import SamplingParams
from engine.requests.validation import Prompt
from engine.serving.errors import ApiError

Body = TypeVar("Body", bound="Asked")


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream brings beside its tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints have."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Refused unless they say nothing.
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    use_beam_search: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None

    UNSERVED: ClassVar[tuple[str, ...]] = (
        *("logit_bias", "use_beam_search", "include_stop_str_in_output", "bad_words"),
        *("allowed_token_ids", "truncate_prompt_tokens", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "prompt_logprobs"),
    )

    def check(self) -> None:
        """Refuse what would be answered otherwise than asked.

        Raises
        ------
        ApiError
            Naming the field.
        """
        for name in self.UNSERVED:
            given = getattr(self, name)
            if given or type(given) is int:
                raise ApiError(400, f"{name} is not served: leave it out.", param=name)
        if self.skip_special_tokens is False:
            message = "Texts are without special tokens: leave out skip_special_tokens."
            raise ApiError(400, message, param="skip_special_tokens")
        if self.response_format and self.response_format.get("type") != "text":
            message = "response_format is served as {'type': 'text'} only: leave it out."
            raise ApiError(400, message, param="response_format")
        if self.stream_options is not None and not self.stream:
            message = "stream_options is for streams only: set stream, or leave it out."
            raise ApiError(400, message, param="stream_options")

    def sampling(self, max_new_tokens: int, logprobs: int | None) -> SamplingParams:
        """The parameters of each prompt.

        Raises
        ------
        ApiError
            A value is outside its range.
        """
        given = {
            "n": self.n,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stop,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "min_new_tokens": self.min_tokens,
            "stop_token_ids": self.stop_token_ids,
            "logprobs": logprobs,
            # All tokens, as vLLM has it.
            "top_k": 0 if self.top_k == -1 else self.top_k,
        }
        options = {name: value for name, value in given.items() if value is not None}
        try:
            return SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                ignore_eos=bool(self.ignore_eos),
                **options,  # type: ignore[arg-type]
            )
        except RequestError as error:
            raise self.refusal(error) from error

    def refusal(self, error: RequestError) -> ApiError:
        """What the client is told of an error, by the names that fields of the API have."""
        said = str(error)
        for name, theirs in self.names().items():
            said = re.sub(rf"\b{name}\b", theirs, said)
        first = said.split(" ", 1)[0]
        is_long = isinstance(error, TooLongError)
        return ApiError(
            400,
            said,
            param=first if first in self.__struct_fields__ else None,
            code="context_length_exceeded" if is_long else None,
        )

    def names(self) -> dict[str, str]:
        """Fields of the engine's parameters that have another name here."""
        return {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


class CompletionBody(Asked, frozen=True, kw_only=True):
    """The body of /v1/completions."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    UNSERVED: ClassVar[tuple[str, ...]] = (*Asked.UNSERVED, "suffix")

    def check(self) -> None:
        """As `Asked.check`."""
        Asked.check(self)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(400, "best_of is served as n only: leave it out.", param="best_of")
        if self.echo and self.logprobs is not None:
            message = "logprobs are of new tokens only: leave out echo or logprobs."
            raise ApiError(400, message, param="echo")

    @property
    def prompts(self) -> list[Prompt]:
        """Each a text or token ids.

        Raises
        ------
        ApiError
            The field is none of these.
        """
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if isinstance(given, list):
            if all(type(one) is int for one in given):
                return [given]
            if all(isinstance(one, str) for one in given):
                return list(given)
            if all(
                isinstance(one, list) and all(type(token) is int for token in one) for one in given
            ):
                return list(given)
        raise ApiError(
            422, "prompt must be a text, token ids, or a list of either.", param="prompt"
        )


class ChatBody(Asked, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    audio: Any = None

    UNSERVED: ClassVar[tuple[str, ...]] = (*Asked.UNSERVED, "functions", "audio")

    def check(self) -> None:
        """As `Asked.check`."""
        Asked.check(self)
        if self.tools and self.tool_choice != "none":
            message = (
                "Calls of tools are not taken out of answers: set tool_choice to 'none', and read "
                "them from the content, or leave tools out."
            )
            raise ApiError(400, message, param="tools")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            message = "tool_choice is for tools, and there are none: leave it out."
            raise ApiError(400, message, param="tool_choice")
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs needs logprobs: set it to true."
            raise ApiError(400, message, param="top_logprobs")

    def names(self) -> dict[str, str]:
        """As `Asked.names`."""
        names = Asked.names(self) | {"logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_new_tokens"] = "max_completion_tokens"
        return names

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report; None for no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the answer at most, where the body says it."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def read_body(kind: type[Body], body: bytes) -> Body:
    """The body of a request.

    Raises
    ------
    ApiError
        400: it is no JSON, or a number is too large for one; 422: a field is missing or has another
        type.
    """
    try:
        asked = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at ")
        param = place.strip("`$.") or None
        where = f" in {param}" if param else ""
        status = 400 if said.endswith("out of range") else 422
        raise ApiError(status, f"The body does not fit{where}: {said}.", param=param) from error
    except RecursionError as error:
        raise ApiError(400, "The body is nested too deep.", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is no JSON: {error}.", code="invalid_json") from error
    asked.check()
    return asked
