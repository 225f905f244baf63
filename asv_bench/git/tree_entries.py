"""Files of a tree: read where they lie, and written into a folder without following a link."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused

FILE, PROGRAM, LINK, FOLDER, SUBMODULE = "100644", "100755", "120000", "040000", "160000"
"""Modes, as git writes them."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, link, folder or submodule of a tree; the content of a link is where it leads."""

    path: str
    mode: str
    content: bytes = b""


def read_entry(place: Path, path: str) -> TreeEntry:
    """What lies at a place, as the entry of a path; a link is not followed.

    Raises Refused if nothing lies there, it cannot be read, or it is a device, a pipe or a socket.
    """
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return TreeEntry(path, LINK, os.fsencode(place.readlink()))
        if stat.S_ISDIR(mode):
            os.listdir(place)
            return TreeEntry(path, FOLDER)
        if stat.S_ISREG(mode):
            return TreeEntry(path, PROGRAM if mode & 0o100 else FILE, place.read_bytes())
    except OSError as error:
        raise Refused(f"{place} cannot be read: {error.strerror}.") from None
    raise Refused(f"{place} is neither a file nor a folder, so it cannot be laid out.")


def write_entries(folder: Path, entries: Iterable[TreeEntry]) -> list[str]:
    """Write entries below a folder; each takes the place of what lies there.

    As with git, a link or a file on the way of an entry gives way to a folder: nothing is written
    through it. Returns the paths of those that did.
    """
    gave_way: list[str] = []
    for entry in entries:
        *parents, name = entry.path.split("/")
        place = folder
        for parent in parents:
            place /= parent
            if os.path.lexists(place) and not _is_folder(place):
                place.unlink()
                gave_way.append(str(place.relative_to(folder)))
            place.mkdir(exist_ok=True)
        place /= name
        if _is_folder(place):
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        if entry.mode == LINK:
            os.symlink(entry.content, os.fsencode(place))
        elif entry.mode in (FOLDER, SUBMODULE):
            place.mkdir()
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            handle = os.open(place, flags, 0o777 if entry.mode == PROGRAM else 0o666)
            with os.fdopen(handle, "wb") as file:
                file.write(entry.content)
    return gave_way


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()
