"""What two ends ran with, where that is not the same: variables, interpreter, packages."""

from __future__ import annotations

from collections.abc import Iterator

from asv_bench.explain.difference import Difference, Source
from asv_bench.subjects.cell import Cell

UNSET = "unset"
ABSENT = "none"


def cell_differences(base: Cell, head: Cell) -> Iterator[Difference]:
    """Each variable, the interpreter and each package that differs."""
    for name in sorted({*base.variables, *head.variables}):
        before, after = base.variables.get(name), head.variables.get(name)
        if before != after:
            text = f"{name} is {after or UNSET} in place of {before or UNSET}"
            yield _different(Source.VARIABLES, name, "variable", before, after, text)
    if base.interpreter != head.interpreter:
        before, after = base.interpreter, head.interpreter
        text = f"{after or 'no Python'} runs in place of {before or 'no Python'}"
        yield _different(Source.VARIABLES, "interpreter", "program", before, after, text)
    for name in sorted({*base.packages, *head.packages}, key=str.lower):
        before, after = base.packages.get(name), head.packages.get(name)
        if before != after:
            text = f"{name} {before or ABSENT} → {after or ABSENT}"
            yield _different(Source.PACKAGES, name, "version", before, after, text)


def _different(
    source: Source, name: str, what: str, before: str | None, after: str | None, sentence: str
) -> Difference:
    return Difference(
        source=source, name=name, what=what, before=before, after=after, sentence=sentence
    )
