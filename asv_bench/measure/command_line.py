"""Lines that users give: variables in them, the Python that they start, and addresses."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import urlsplit

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_OPTIONS = {"-B", "-P", "-u"}
_FOR_A_SHELL = re.compile(r"[`*?\[~\n|&;<>(){}]|'.*\$|\$.*'")


def filled(text: str, variables: Mapping[str, str]) -> str:
    """A text with $NAME and ${NAME} of these variables replaced, by whole names as in a shell."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), text)


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that is one script or module of Python.

    `words` are its name and its arguments, `is_safe_path` whether Python looks for modules beside
    a script.
    """

    program: str
    options: tuple[str, ...]
    words: tuple[str, ...]
    is_module: bool
    is_safe_path: bool

    @classmethod
    def of(
        cls, command: str | tuple[str, ...], variables: Mapping[str, str]
    ) -> PythonCommand | None:
        """What a command starts; None where a shell has to read it, or it starts something else."""
        if isinstance(command, str):
            if _FOR_A_SHELL.search(_VARIABLE.sub("$", command.strip())):
                return None
            try:
                words = shlex.split(command)
            except ValueError:
                return None
            words = [filled(word, variables) for word in words]
        else:
            words = list(command)
        count = 1 + len(list(takewhile(_OPTIONS.__contains__, words[1:])))
        is_module = words[count : count + 1] == ["-m"]
        named = words[count + is_module :]
        if not (named and _PYTHON.fullmatch(words[0])) or named[0].startswith("-"):
            return None
        options = tuple(words[1 : count + is_module])
        program = shutil.which(words[0], path=variables.get("PATH", os.defpath)) or words[0]
        return cls(program, options, tuple(named), is_module, "-P" in options)


def check_address(text: str, key: str = "ready", variable: str = "KVTRAIL_PORT") -> None:
    """Raise ValueError unless a key's text is an address, once its one variable is replaced."""
    address = filled(text, {variable: "1"})
    if re.search(r"\$\{?\w", address):
        raise ValueError(f"{key} is {text!r}; nothing but ${variable} is replaced in it")
    if not re.fullmatch(r"(?i:https?)://[!-~]+", address):
        raise ValueError(f"{key} is {text!r}; give http:// or https://, and no blanks behind")
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.hostname and parts.port != 0 and "@" not in parts.netloc:
            return
    raise ValueError(f"{key} is {text!r}; it needs a host, and a port from 1 to 65535")
