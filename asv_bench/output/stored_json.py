"""Reading JSON and figures from outside: stored earlier, left by a life, or of somebody's editor.

Such a file may be cut off, be of something else, or hold figures that are none. Whoever reads one
gets a sentence that names the file and what is wrong with it, leaves that out, and judges the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from asv_bench.errors import BenchError, Refused

Parsed = TypeVar("Parsed")

LATEST_MOMENT_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, since 1970: no calendar here goes on."""

_LONGEST = 60
_LARGEST = 1e100
"""Beyond it, and below its inverse, ratios and sums of figures might be no numbers any more."""
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

_FOREIGN = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    BenchError,
)
"""What reading raises where a file holds something else than its reader expects."""


class UnreadableFile(Refused):
    """A stored file that is damaged or something else; the message names it and says why."""


def read_stored(path: Path, what: str, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """What `parse` makes of the JSON object in a file.

    `what` says what it should be: "a result file of asv". `parse` raises what Python raises where
    something is missing or of another kind.

    Raises UnreadableFile if the file cannot be read, or is something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}.") from error
    return parsed_json(path, what, content, parse)


def parsed_json(
    path: Path | str, what: str, content: bytes, parse: Callable[[dict[str, Any]], Parsed]
) -> Parsed:
    """The same of bytes that have been read already; `path` names where they were."""
    try:
        value = decoded(content)
    except ValueError as error:
        raise UnreadableFile(f"{path} is not JSON: {error}.") from error
    return parsed(path, what, value, parse)


def decoded(content: bytes, errors: Literal["strict", "replace"] = "strict") -> Any:
    """The value of JSON in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    `errors` says what becomes of bytes that are none of these. NaN and Infinity are taken, as many
    programs write them; whoever wants a number asks `positive`, `count` or `finite`.

    Raises ValueError if it is no JSON.
    """
    try:
        return json.loads(content.decode(json.detect_encoding(content), errors))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed(
    path: Path | str, what: str, content: Any, parse: Callable[[dict[str, Any]], Parsed]
) -> Parsed:
    """The same of JSON that has been decoded already."""
    try:
        if not isinstance(content, dict):
            raise UnreadableFile(f"{path} is not a JSON object.")
        return parse(content)
    except UnreadableFile:
        raise
    except _FOREIGN as error:
        raise UnreadableFile(f"{path} is not {what}: {_reason(error)}.") from error


def require_schema(content: Mapping[str, Any], wanted: int, name: str = "schema") -> None:
    """Raise ValueError or KeyError unless a file is written as its reader reads it."""
    if content[name] != wanted or isinstance(content[name], bool):
        raise ValueError(f"its {name} is {shown(content[name])}, not {wanted}")


def positive(value: Any) -> float:
    """A figure that can be compared as a ratio; ValueError if it is none, or none above 0."""
    if not _is_number(value) or value < 1 / _LARGEST:
        raise ValueError(f"{shown(value)} is no positive number")
    return float(value)


def figure(value: Any) -> float:
    """The same of a figure that may be a text, as one that was printed is."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        return positive(float(value))
    return positive(value)


def finite(value: Any) -> float:
    """Any number that sums and ratios can be made of; ValueError if it is none."""
    if not _is_number(value):
        raise ValueError(f"{shown(value)} is no number")
    return float(value)


def count(value: Any) -> float:
    """A figure that may be zero, such as a number of spilled registers; ValueError if negative.

    What is above zero is large enough to divide by.
    """
    if not _is_number(value) or (value != 0 and value < 1 / _LARGEST):
        raise ValueError(f"{shown(value)} is no count")
    return float(value)


def text(value: Any) -> str:
    """A text; ValueError if it is empty, or something else."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{shown(value)} is no text")
    return value


def moment(value: Any) -> int:
    """Milliseconds since 1970; ValueError if they are no moment of a calendar."""
    if not _is_number(value) or not 0 <= value <= LATEST_MOMENT_MS:
        raise ValueError(f"{shown(value)} is no time in milliseconds")
    return int(value)


def shown(value: Any) -> str:
    """A value as a sentence quotes it: no more than its beginning."""
    try:
        quoted = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except RecursionError:
        quoted = "what is nested deeply"
    return quoted if len(quoted) <= _LONGEST else f"{quoted[:_LONGEST]}..."


def _is_number(value: Any) -> bool:
    # NaN is below nothing, and an integer beyond every float compares all the same.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error).rstrip(".") or repr(error)
