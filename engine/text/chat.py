"""The chat template that a tokenizer brings: from messages to the text that a model answers.

A template is a program of the checkpoint's author. It is rendered in jinja's sandbox, where it can
neither import anything, nor reach attributes of Python's own, nor change what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import ModelError, RequestError
from engine.models.files import read_json_object

Message: TypeAlias = Mapping[str, Any]
"""`role`, `content`, and what else the template reads."""

CHAT_FILES = ("chat_template.jinja", "chat_template.json")

_DEFAULT = "default"
"""Of several templates the one for chat without tools."""

_TOOL_USE = "tool_use"


class ChatTemplate:
    """Templates of a tokenizer by their names, and the special tokens that they may write.

    Raises
    ------
    ModelError
        A template is no valid jinja, or jinja is not installed.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        environment = _sandbox()
        from jinja2 import TemplateError

        self._templates = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except TemplateError as error:
                raise ModelError(f"The chat template is no valid jinja: {error}.") from error

    @classmethod
    def in_directory(cls, directory: Path) -> ChatTemplate | None:
        """That of a tokenizer's directory; None where it has none.

        A file of its own comes before the entry in tokenizer_config.json.
        """
        config, special = _config(directory)
        alone = directory / CHAT_FILES[0]
        if alone.is_file():
            return cls({_DEFAULT: alone.read_text("utf-8")}, special)
        given = _read(directory / CHAT_FILES[1]).get("chat_template", config.get("chat_template"))
        if isinstance(given, str):
            return cls({_DEFAULT: given}, special)
        if isinstance(given, list):
            return cls({one["name"]: one["template"] for one in given}, special)
        return None

    @classmethod
    def beside(cls, directory: Path, source: str) -> ChatTemplate:
        """A template for the tokenizer of a directory, with that one's special tokens."""
        return cls({_DEFAULT: source}, _config(directory)[1])

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of a conversation, up to where the answer begins.

        Parameters
        ----------
        messages
            In order. Content is text, or a list of parts `{"type": "text", "text": ...}`.
        tools
            Functions that the model may call, as the template wants them.
        add_generation_prompt
            End with what begins an answer.
        variables
            Whatever else the template reads, such as `enable_thinking`.

        Raises
        ------
        RequestError
            The messages are none, or the template refuses them.
        """
        checked = _checked_messages(messages)
        template = self._templates.get(_TOOL_USE) if tools else None
        template = template or self._templates.get(_DEFAULT)
        if template is None:
            names = ", ".join(self._templates)
            raise RequestError(f"The tokenizer has chat templates {names}, but no {_DEFAULT}.")
        given = {"tools": tools, "documents": None, **self._special_tokens, **variables}
        given |= {"messages": checked, "add_generation_prompt": add_generation_prompt}
        try:
            text: str = template.render(given)
        except Exception as error:
            # A template is a program of the model's own.
            said = str(error).rstrip(".") or type(error).__name__
            raise RequestError(f"The chat template refuses these messages: {said}.") from error
        return text


def _sandbox() -> Any:
    """As transformers renders templates: blocks leave no blanks, and `generation` marks nothing."""
    try:
        from jinja2 import ext, nodes
        from jinja2.exceptions import TemplateError
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ModelError(
            "Chat templates need the package jinja2, which is not installed. Install it (pip "
            "install 'kvtrail[engine]')."
        ) from error

    class Generation(ext.Extension):
        """What stands between `generation` and `endgeneration`, as if they were not there."""

        tags = {"generation"}  # noqa: RUF012 (jinja's own)

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, **options: Any) -> str:
        # jinja's own writes HTML's characters in another way.
        return json.dumps(value, **({"ensure_ascii": False} | options))

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError("messages must be a list of messages, each with a role and a content.")
    if not messages:
        raise RequestError("messages is empty; it must hold at least one message.")
    return [_checked_message(one, place) for place, one in enumerate(messages)]


def _checked_message(message: Message, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(
            f"Message {place} must be an object with a role, such as 'user', and a content."
        )
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_text_of(part, place) for part in content)
    elif content is not None and not isinstance(content, str):
        raise RequestError(f"The content of message {place} must be text, or a list of text parts.")
    return {**message, "content": content}


def _text_of(part: object, place: int) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(
            f"Message {place} holds a part that is no text; the engine runs models of text only."
        )
    return text


def _config(directory: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tokenizer's tokenizer_config.json, and the special tokens by their names."""
    config = _read(directory / "tokenizer_config.json")
    return config, _special_tokens(config | _read(directory / "special_tokens_map.json"))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """By their names, such as `bos_token`."""
    tokens = {}
    for name, given in config.items():
        content = given.get("content") if isinstance(given, Mapping) else given
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
