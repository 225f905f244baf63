"""Files that all variants take from the working tree, as they were when first asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.trees import LINK, TreeEntry, read_entry, write_entries

_LEFT_OUT = {"__pycache__", ".git"}


@dataclass(frozen=True, slots=True)
class Pinned:
    """Pinned paths with their content, so that both ends get the same, on any host."""

    entries: tuple[TreeEntry, ...]
    digests: dict[str, str]
    """By path, a hash of the file, or of all files below a folder with their names."""

    @classmethod
    def read(cls, root: Path, paths: Sequence[str]) -> Pinned:
        """Read paths below a folder.

        A path that is a link, or lies behind one, gives what the link leads to; links within a
        pinned folder stay links. Raises Refused where one is not there, or cannot be read.
        """
        entries: list[TreeEntry] = []
        digests: dict[str, str] = {}
        for path in paths:
            digest = hashlib.sha256()
            for place, entry in _below(root, path):
                entries.append(entry)
                if place.is_file():
                    linked = read_entry(place.resolve(), "") if entry.mode == LINK else entry
                    name = os.path.relpath(entry.path, os.path.dirname(path) or ".")
                    digest.update(os.fsencode(name) + b"\0" + linked.content)
            digests[path] = digest.hexdigest()[:16]
        return cls(tuple(entries), digests)

    def write(self, tree: Path) -> list[str]:
        """Put them into a tree, in place of what it has; returns a sentence for what gave way."""
        return [
            f"{path} is a link or a file there, and gave way to a folder for what is pinned in it"
            for path in write_entries(tree, self.entries)
        ]


def digest_of(path: Path) -> str:
    """A hash of a file, or of all files below a folder with their names."""
    return Pinned.read(path.parent, (path.name,)).digests[path.name]


def _below(root: Path, path: str) -> Iterator[tuple[Path, TreeEntry]]:
    """Where a path and all below it lie, and what lies there; a folder before what is in it."""
    try:
        top = (root / path).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its links lead in a circle"
        raise Refused(
            f"pinned names {path}, which cannot be read in {root}: {reason}. Name what is there."
        ) from None
    yield top, read_entry(top, path)
    for place in sorted(top.rglob("*")):
        below = place.relative_to(top)
        if not _LEFT_OUT.intersection(below.parts):
            yield place, read_entry(place, f"{path}/{below.as_posix()}")
