"""Reading JSON and figures from outside: stored earlier, left by a life, or of somebody's editor.

Such a file may be cut off, be of something else, or hold figures that are none. Whoever reads one
gets a sentence that names the file and what is wrong with it, leaves that out, and judges the rest.
What a file should hold is best said by a msgspec struct, with the types of figures below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta

from asv_bench.errors import BenchError, Refused

Parsed = TypeVar("Parsed")

# Beyond these, ratios and sums of figures might be no numbers any more.
Positive: TypeAlias = Annotated[float, Meta(ge=1e-100, le=1e100)]
Count: TypeAlias = Annotated[float, Meta(ge=0, le=1e100)]
Number: TypeAlias = Annotated[float, Meta(ge=-1e100, le=1e100)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970, up to the year 9999: no calendar here goes on."""

_OTHERWISE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, BenchError)
"""What is raised where a file holds something else than it should."""
_LONGEST = 60
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class UnreadableFile(Refused):
    """A stored file that is damaged or something else; the message names it and says why."""


def read_stored(
    path: Path, what: str, parse: Callable[[dict[str, Any]], Parsed] | type[Parsed]
) -> Parsed:
    """The JSON object in a file as a struct, or as what `parse` makes of it.

    `what` says what it should be: "a result file of asv". A function raises what Python raises
    where something is missing or of another kind. Raises UnreadableFile if the file cannot be read,
    or is something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}.") from error
    return parsed(path, what, content, parse)


def parsed(
    path: Path | str,
    what: str,
    content: Any,
    parse: Callable[[dict[str, Any]], Parsed] | type[Parsed],
) -> Parsed:
    """The same of bytes that have been read already, or of JSON that has been decoded."""
    try:
        content = decoded(content) if isinstance(content, bytes) else content
    except ValueError as error:
        raise UnreadableFile(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UnreadableFile(f"{path} is not a JSON object.")
    is_struct = isinstance(parse, type) and issubclass(parse, msgspec.Struct)
    read: Any = partial(msgspec.convert, type=parse) if is_struct else parse
    try:
        return cast(Parsed, read(content))
    except UnreadableFile:
        raise
    except _OTHERWISE as error:
        lacking = f"it lacks {error}" if isinstance(error, KeyError) else ""
        why = lacking or str(error).rstrip(".") or repr(error)
        raise UnreadableFile(f"{path} is not {what}: {why}.") from error


def decoded(content: bytes, errors: Literal["strict", "replace"] = "strict") -> Any:
    """The value of JSON in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    `errors` says what becomes of bytes that are none of these. NaN and Infinity are taken, as many
    programs write them: no figure may be one. Raises ValueError if it is no JSON.
    """
    try:
        return json.loads(content.decode(json.detect_encoding(content), errors))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def require_schema(content: Mapping[str, Any], wanted: int, name: str = "schema") -> None:
    """Raise ValueError or KeyError unless a file is written as its reader reads it."""
    if content[name] != wanted or isinstance(content[name], bool):
        raise ValueError(f"its {name} is {shown(content[name])}, not {wanted}")


def _one(kind: Any, value: Any, what: str) -> Any:
    """A value of a type; ValueError with a sentence if it is of another."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ValueError(f"{shown(value)} is no {what}") from None


def positive(value: Any) -> float:
    """A figure that can be compared as a ratio; ValueError if it is none, or none above 0."""
    return float(_one(Positive, value, "positive number"))


def figure(value: Any) -> float:
    """The same of a figure that may be a text, as one that was printed is."""
    return positive(_unprinted(value))


def number(value: Any) -> float:
    """A number, also one that was printed, of any sign; ValueError if it is none."""
    return float(_one(Number, _unprinted(value), "number"))


def _unprinted(value: Any) -> Any:
    is_printed = isinstance(value, str) and _DECIMAL.fullmatch(value.strip())
    return float(value) if is_printed else value


def count(value: Any) -> float:
    """A figure that is 0 or large enough to divide by; ValueError if it is neither."""
    is_zero = isinstance(value, int | float) and not isinstance(value, bool) and value == 0
    return 0.0 if is_zero else float(_one(Positive, value, "count"))


def text(value: Any) -> str:
    """A text; ValueError if it is empty, or something else."""
    return str(_one(Text, value, "text"))


def shown(value: Any) -> str:
    """A value as a sentence quotes it: no more than its beginning."""
    try:
        quoted = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except RecursionError:
        quoted = "what is nested deeply"
    return quoted if len(quoted) <= _LONGEST else f"{quoted[:_LONGEST]}..."
