"""Commits that change nothing that runs: what a culprit hides among."""

from __future__ import annotations

import random
import re
from pathlib import Path

from asv_bench.process.contract import MEASURED_PACKAGES

_PRIVATE_CONSTANT = re.compile(r"^(_[A-Z][A-Z_]+)\b.*=", re.MULTILINE)


def make_harmless_change(root: Path, number: int, choices: random.Random, keep: Path) -> str:
    """Add a comment to a file of a scratch clone, or rename a private constant in it.

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
    path = choices.choice(files)
    text = path.read_text(encoding="utf-8")
    names = sorted(set(_PRIVATE_CONSTANT.findall(text)))
    if names and choices.random() < 0.5:
        name = choices.choice(names)
        # An earlier change's ending is taken off again, so that names do not grow.
        stem = re.sub(r"_CHANGE_\w+$", "", name)
        ending = "".join(chr(ord("A") + int(digit)) for digit in str(number))
        text = re.sub(rf"\b{name}\b", f"{stem}_CHANGE_{ending}", text)
        what = "Rename private constant"
    else:
        text += f"\n# Remark {number}, which nothing depends on.\n"
        what = "Add comment"
    compile(text, str(path), "exec")
    path.write_text(text, encoding="utf-8")
    return f"{what} in {path.relative_to(root)} (change {number})"
