"""Every mutant, as `faults/*.diff` list them. A kernel file has at least three; none may survive.

In these files `@@` names the file that is changed, and `@` how it is checked and by which tests,
for all mutants up to the next. A mutant is a line that says why a test must notice it, then the
text that stands there (-) and what takes its place (+): whole lines or parts of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .mutant import Mutant, MutantError

FAULTS = Path(__file__).with_name("faults")

_ENTRY = re.compile(
    r"(?:#.*)?\n"
    r"|@@ (?P<file>.+)\n"
    r"|@ (?P<check>tests|thorough|gpu|codegen): (?P<tests>.+?)(?: -k (?P<only>.+))?\n"
    r"|(?P<why>[^-+@\n].*)\n(?P<original>(?:-.*\n)+)(?P<replacement>(?:\+.*\n)*)"
)


def mutants_in(text: str) -> Iterator[Mutant]:
    """The mutants that a text lists.

    Raises
    ------
    MutantError
        Where the text is none.
    """
    file, group, end = "", None, 0
    while entry := _ENTRY.match(text, end):
        end = entry.end()
        if entry["file"]:
            file, group = entry["file"], None
        elif entry["check"]:
            group = entry
        elif entry["why"]:
            if group is None:
                raise MutantError(f"it is not said which tests notice {entry['why']!r}")
            original, replacement = (
                "\n".join(line[2:] for line in entry[side].splitlines())
                for side in ("original", "replacement")
            )
            tests, only = tuple(group["tests"].split()), group["only"] or ""
            yield Mutant(file, original, replacement, entry["why"], tests, only, group["check"])
    if end < len(text):
        raise MutantError(f"no mutant can be read from {text[end:].splitlines()[0]!r} on")


MUTANTS = tuple(
    mutant for path in sorted(FAULTS.glob("*.diff")) for mutant in mutants_in(path.read_text())
)
