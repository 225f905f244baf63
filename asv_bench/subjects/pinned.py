"""Files that all variants take from the working tree, as they were when first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused

_LEFT_OUT = {"__pycache__", ".git"}


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, link or folder of a tree; the content of a link is where it leads."""

    path: str
    mode: int
    content: bytes = b""


def _entry(place: Path, path: str) -> TreeEntry:
    """What lies at a place, as the entry of a path; a link is not followed.

    Raises Refused if nothing lies there, it cannot be read, or it is a device, a pipe or a socket.
    """
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return TreeEntry(path, mode, os.fsencode(place.readlink()))
        if stat.S_ISDIR(mode):
            os.listdir(place)
            return TreeEntry(path, mode)
        if stat.S_ISREG(mode):
            return TreeEntry(path, mode, place.read_bytes())
    except OSError as error:
        raise Refused(f"{place} cannot be read: {error.strerror}.") from None
    raise Refused(f"{place} is neither a file nor a folder, so it cannot be laid out.")


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
                    linked = _entry(place.resolve(), "") if stat.S_ISLNK(entry.mode) else entry
                    name = os.path.relpath(entry.path, os.path.dirname(path) or ".")
                    digest.update(os.fsencode(name) + b"\0" + linked.content)
            digests[path] = digest.hexdigest()[:16]
        return cls(tuple(entries), digests)

    def write(self, tree: Path) -> list[str]:
        """Put them into a tree, each in place of what it has; returns a sentence for what gave way.

        As with git, a link or a file on the way of an entry gives way to a folder: nothing is
        written through it.
        """
        gave_way: list[str] = []
        for entry in self.entries:
            *parents, name = entry.path.split("/")
            place = tree
            for parent in parents:
                place /= parent
                if os.path.lexists(place) and not _is_folder(place):
                    place.unlink()
                    gave_way.append(
                        f"{place.relative_to(tree)} is a link or a file there, and gave way to a "
                        f"folder for what is pinned in it"
                    )
                place.mkdir(exist_ok=True)
            place /= name
            if _is_folder(place):
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
            if stat.S_ISLNK(entry.mode):
                os.symlink(entry.content, os.fsencode(place))
            elif stat.S_ISDIR(entry.mode):
                place.mkdir()
            else:
                # A file of our own making, whatever else comes to lie there: no link is followed.
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                handle = os.open(place, flags, 0o777 if entry.mode & 0o100 else 0o666)
                with os.fdopen(handle, "wb") as file:
                    file.write(entry.content)
        return gave_way


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
    yield top, _entry(top, path)
    for place in sorted(top.rglob("*")):
        below = place.relative_to(top)
        if not _LEFT_OUT.intersection(below.parts):
            yield place, _entry(place, f"{path}/{below.as_posix()}")


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()
