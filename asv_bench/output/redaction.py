"""Secrets in what is recorded: told by the words of a name, or by what a value looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
"""Stands in a text where a secret was."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORD = re.compile(
    r"\w*(PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|SECRETS?|CREDENTIALS?|CREDS|PWD)"
)
"""Words of which even a number is a secret."""
_GLUED_PASS = re.compile(r"(?!(BY|COM|ENCOM|IM|OVER|SUR|TRES|UNDER)PASS$)\w*PASS")
_SECRET = re.compile(
    r"\w*(?<!DE)TOKEN|(API|ACCESS|ACCOUNT|AUTH|MASTER|PRIVATE|SECRET|SIGNING|SSH)?KEY|APIKEYS"
    r"|O?AUTH|AUTHORIZATION|BEARER|CERT|CERTIFICATE|COOKIES?|DSN|JWT|KEYTAB|NETRC|PAT|PEM|PRIVATE"
    r"|SAS|SIG|SIGNATURE|WEBHOOK"
)
_PAIRS = re.compile(r"\b(ACCESS ID|CONNECTION STRING|(API|ACCESS|AUTH|SSH) (KEYS|TOKENS))\b")
_OF_TEXT = re.compile(
    r"\b((BOS|CLS|EOS|FIRST|IMAGE|MASK|NEXT|PAD|PER|PROMPT|SEP|SPECIAL|STOP|UNK) TOKEN"
    r"|(CACHE|FOREIGN|GROUP|PRIMARY|PUBLIC|SORT) KEY)\b"
)
"""Tokens of a model's text and keys of tables, which are no secrets."""
_PLAIN = r"true|false|yes|no|on|off|none|auto|\$\w+|\$\{\w+\}"
"""What is no secret, whatever its name: a switch, or the name of a variable."""

_ADDRESS = re.compile(r"(?<=://)[^\s/@'\"]*:[^\s/@'\"]*(?=@)|(?<=https://)[^\s/@'\"]+(?=@)")
"""In an address, who asks and the password; or a token, where nobody is named beside it."""
_SHAPES = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|AIza[\w-]{35}|gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|hf_\w{20,}|sk-[\w-]{20,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*"
    r"|(?i:(?<=bearer ))[\w.~+/-]{16,}=*)"
)
"""Secrets that are known by their own look."""
_NAMED = re.compile(
    r"(?P<name>-{0,2}[A-Za-z_][\w.-]*)"
    r"(?:[\"']?\s*(?P<sign>[=:])[ \t]*|[ \t]+)"
    r"(?=(?P<value>(?:'[^'\n]*'|\"[^\"\n]*\")+"
    r"|(?i:(?<=authorization: )|(?<=cookie: ))[^'\"\n]+|[^\s'\"&,;)}\]]+))"
)
"""A name and what it is given: `NAME=value`, `--name value`, `"name": "value"`."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable or option holds a secret, by whole words of its name and by its value."""
    words = _WORD.findall(name)
    if name in ("PWD", "OLDPWD"):
        words = []
    elif name.isupper() or name.islower():
        words = re.findall(r"[A-Z]+", name.upper())
    phrase = _OF_TEXT.sub("", " ".join(words).upper())
    left = phrase.split()
    is_strong = any(_PASSWORD.fullmatch(word) or _GLUED_PASS.fullmatch(word) for word in left)
    is_named = is_strong or _PAIRS.search(phrase) or any(map(_SECRET.fullmatch, left))
    number = rf"-?[\d.,]{{1,{2 if is_strong else 8}}}"
    if is_named and not re.fullmatch(rf"({number}|{_PLAIN})?", value, re.IGNORECASE):
        return True
    return without_known_secrets(value) != value


def without_known_secrets(text: str) -> str:
    """What a program prints, with `HIDDEN` in place of what is a secret whatever its name."""
    return _SHAPES.sub(HIDDEN, _ADDRESS.sub(HIDDEN, text))


def without_secrets(text: str) -> str:
    """A line for the shell, or a file of keys and values, with `HIDDEN` in place of each secret."""
    text = without_known_secrets(text)
    kept, end = [], 0
    for found in _NAMED.finditer(text):
        name, value = found["name"], found["value"]
        is_given = found["sign"] or name.startswith("-")
        start, after = found.span("value")
        if is_given and start >= end and is_secret(name, value.strip("'\"")):
            quote = value[0] if value[0] in "'\"" else ""
            kept += [text[end:start], quote, HIDDEN, quote]
            end = after
    return "".join([*kept, text[end:]])


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """The same of the words of a command line."""
    return [
        HIDDEN
        if before.startswith("-") and not word.startswith("-") and is_secret(before, word)
        else without_secrets(word)
        for before, word in zip(["", *words], words, strict=False)
    ]
