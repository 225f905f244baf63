"""Values of a TOML file: what they may be, and what is said where they are others."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import Meta

_NAME = r"^(?!\.*\Z)[\w.-]+\Z"
_WORDS = r"^[^\x00-\x1f\x7f]+\Z"
_PRINTED = r"^[^\x00-\x1f\x7f]*\Z"
_TEXT = r"^[^\x00]*\Z"
_LINE = r"^(?=\s*\S)[^\x00]*\Z"
_MODULE = r"^[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?\Z"
_VARIABLE = r"^[^=\x00]+\Z"
_TAKE = r"^(median|min|mean|p[1-9][0-9]?)\Z"
_MEANT = {
    _NAME: "of letters, digits, `_`, `-` and dots, and not of dots alone",
    _WORDS: "in one line, without control characters and not empty",
    _PRINTED: "in one line, without control characters",
    _TEXT: "without NUL characters",
    _LINE: "that is not blank, without NUL characters",
    _MODULE: "that names a module, such as torch.nn, or one of its functions behind a colon",
    _TAKE: "that is median, min, mean, or a percentile from p1 to p99",
    _VARIABLE: "that can be a variable's name: not empty, without `=` and NUL characters",
}
"""What each pattern means, for the sentence where a text does not match it."""
_KINDS = {"object": "a table", "str": "a text", "int": "a whole number", "float": "a number"}

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Name: TypeAlias = Annotated[str, Meta(pattern=_NAME, max_length=60)]
Words: TypeAlias = Annotated[str, Meta(pattern=_WORDS)]
Printed: TypeAlias = Annotated[str, Meta(pattern=_PRINTED)]
Text: TypeAlias = Annotated[str, Meta(pattern=_TEXT)]
Line: TypeAlias = Annotated[str, Meta(pattern=_LINE)]
Module: TypeAlias = Annotated[str, Meta(pattern=_MODULE)]
Variable: TypeAlias = Annotated[str, Meta(pattern=_VARIABLE)]
Take: TypeAlias = Annotated[str, Meta(pattern=_TAKE)]


def compiled(regex: str) -> re.Pattern[str]:
    """A regular expression of a file; ValueError with a sentence where it is none."""
    try:
        return re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{regex!r} is no regular expression: {error}") from None


def in_words(message: str) -> str:
    """A message of msgspec in words; its places, as `$.metrics[...]`, are tables of the file."""
    for pattern, meant in _MEANT.items():
        message = message.replace(f"`str` matching regex {pattern!r}", f"a text {meant}")
    for kind, meant in _KINDS.items():
        message = re.sub(f"(Expected|got) `{kind}`", rf"\1 {meant}", message)
    message = message.replace("Object missing required field", "There is no")
    text, found, place = message.removesuffix(".").partition(" - at `")
    where = place.replace("key` in `", "a key of ").replace("$.", "").replace("$", "").rstrip("`")
    return f"{text}, in {where.replace('[...]', '.NAME')}" if found else text
