"""One fault, where it is planted and which tests must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class MutantError(Exception):
    """A mutant that cannot be planted or says nothing: a fault of the catalog."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one place in one file.

    Attributes
    ----------
    file
        Relative to the repository.
    original, replacement
        The text that stands there, once and exactly so, and what takes its place.
    why
        What goes wrong with it, and so why a test must fail.
    tests
        Files for pytest, the quickest to fail first.
    only
        As pytest's ``-k``; empty for all tests of the files.
    check
        "tests" runs them through Triton's interpreter, "thorough" does so with those that are
        marked as thorough, "gpu" compiled on a GPU, and "codegen" without either: it compiles
        kernels for sm_90, and `only` is a part of their names.
    """

    file: str
    original: str
    replacement: str
    why: str
    tests: tuple[str, ...]
    only: str = ""
    check: Literal["tests", "thorough", "gpu", "codegen"] = "tests"

    @property
    def title(self) -> str:
        """The change in a line."""
        before, after = (" ".join(text.split()) for text in (self.original, self.replacement))
        return f"{Path(self.file).name}: {before} -> {after or 'nothing'}"

    def planted_in(self, text: str) -> str:
        """The file's text with the fault.

        Raises
        ------
        MutantError
            When the original is not there exactly once, or the replacement changes nothing.
        """
        count = text.count(self.original)
        if count != 1:
            found = "no longer found" if count == 0 else f"found {count} times"
            raise MutantError(
                f"the text must stand in {self.file} exactly once, but is {found}: "
                f"{self.original!r}"
            )
        if self.original == self.replacement:
            raise MutantError(f"the mutant changes nothing: {self.original!r}")
        return text.replace(self.original, self.replacement)
