"""What two ends ran with, where that is not the same: variables, interpreter, packages."""

from __future__ import annotations

from collections.abc import Iterator

from asv_bench.explain.difference import Difference, Source
from asv_bench.subjects.cell import Cell, other_packages

UNSET = "unset"
ABSENT = "none"


def cell_differences(base: Cell, head: Cell) -> Iterator[Difference]:
    """Each variable, the interpreter and each package that differs."""
    for name in sorted({*base.variables, *head.variables}):
        before, after = base.variables.get(name), head.variables.get(name)
        if before != after:
            text = f"{name} is {after or UNSET} in place of {before or UNSET}"
            yield _different(Source.VARIABLES, name, "variable", before, after, text)
    before, after = base.interpreter, head.interpreter
    if before and after and before != after:
        text = f"{after} runs in place of {before}"
        yield _different(Source.VARIABLES, "interpreter", "program", before, after, text)
    for name, before, after in other_packages(base, head):
        text = f"{name} {before or ABSENT} → {after or ABSENT}"
        yield _different(Source.PACKAGES, name, "version", before, after, text)


def _different(
    source: Source, name: str, what: str, before: str | None, after: str | None, sentence: str
) -> Difference:
    return Difference(
        source=source, name=name, what=what, before=before, after=after, sentence=sentence
    )
