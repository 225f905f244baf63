"""Commits that change nothing that runs: what a culprit hides among."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from asv_bench.process.contract import MEASURED_PACKAGES

_PRIVATE_CONSTANT = re.compile(r"^(_[A-Z][A-Z_]+)\b.*=", re.MULTILINE)


def make_harmless_change(root: Path, number: int, choices: random.Random, keep: Path) -> str:
    """Change a file of a scratch clone in a way that changes no behaviour.

    Parameters
    ----------
    root
        The clone.
    number
        Of the change; makes each text differ from the others'.
    choices
        Decides what is changed.
    keep
        A file, relative to `root`, that must stay as it is.

    Returns
    -------
    str
        A subject for the commit.
    """
    files = [
        path
        for package in MEASURED_PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if path.relative_to(root) != keep
    ]
    kinds: list[Callable[[str, int, random.Random], str | None]] = [
        _add_comment,
        _extend_docstring,
        _rename_private_constant,
    ]
    while True:
        path, kind = choices.choice(files), choices.choice(kinds)
        before = path.read_text(encoding="utf-8")
        after = kind(before, number, choices)
        if after is None or after == before:
            continue
        compile(after, str(path), "exec")
        path.write_text(after, encoding="utf-8")
        what = kind.__name__.strip("_").replace("_", " ").capitalize()
        return f"{what} in {path.relative_to(root)} (change {number})"


def _add_comment(text: str, number: int, choices: random.Random) -> str | None:
    return f"{text}\n# Remark {number}, which nothing depends on.\n"


def _extend_docstring(text: str, number: int, choices: random.Random) -> str | None:
    # The module's own docstring is the first thing in each file.
    found = re.match(r'("""[^"]*?)(\n?""")', text)
    if found is None:
        return None
    return f"{found[1]}\n\nNote {number}.\n{found[2].lstrip()}{text[found.end() :]}"


def _rename_private_constant(text: str, number: int, choices: random.Random) -> str | None:
    names = sorted(set(_PRIVATE_CONSTANT.findall(text)))
    if not names:
        return None
    name = choices.choice(names)
    # Taken off again where an earlier change put it, so that names do not grow.
    stem = re.sub(r"_CHANGE_\w+$", "", name)
    letters = "".join(chr(ord("A") + int(digit)) for digit in str(number))
    return re.sub(rf"\b{name}\b", f"{stem}_CHANGE_{letters}", text)
