"""Reading JSON that was stored earlier: by this ruler, by asv, or by somebody's editor.

A stored file may be cut off, be of something else, or hold figures that are none. Whoever reads one
gets a sentence that names the file and what is wrong with it, leaves that out, and judges the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from asv_bench.errors import BenchError, Refused

Parsed = TypeVar("Parsed")

LATEST_MOMENT_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, since 1970: no calendar here goes on."""

_LONGEST = 60

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
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path} is not JSON: {error}.") from error
    return parsed(path, what, value, parse)


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
    """A figure that has a logarithm; ValueError if it is not finite and positive."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{shown(value)} is no positive number")
    return float(value)


def count(value: Any) -> float:
    """A figure that may be zero, such as a number of spilled registers; ValueError if negative."""
    if not _is_number(value) or value < 0:
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
    quoted = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return quoted if len(quoted) <= _LONGEST else f"{quoted[:_LONGEST]}..."


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error).rstrip(".") or repr(error)
