"""The measured packages of a commit, as the commit has them: byte for byte, mode for mode.

`git archive` and `git checkout` would change them as attributes, filters and settings say
(export-ignore, ident, line ends); their contents come straight from the commit instead.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from asv_bench.errors import Refused
from asv_bench.git.repository import AS_IT_IS, GitError, Repository
from asv_bench.process.environment import COMMIT_MARKER, MEASURED_PACKAGES

FILE, PROGRAM, LINK, FOLDER, SUBMODULE = "100644", "100755", "120000", "040000", "160000"
"""Modes, as git writes them."""
REMARKS = "REMARKS"
"""A file beside the packages of a commit with sentences about them, a NUL between two."""
_KEPT_FOLDERS = 96
_PARTIAL = ".partial-"
_STALE_SECONDS = 3600.0
_ODD = {"", ".", "..", ".git"}
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, link, folder or submodule of a tree; the content of a link is where it leads."""

    path: str
    mode: str
    content: bytes = b""

    def why_not_the_commits(self) -> str | None:
        """Why what is found here is not the commit's own; None where it is."""
        if self.mode == SUBMODULE:
            return "a submodule, whose files are in another repository: its folder is empty here."
        if self.mode == LINK:
            target = os.fsdecode(self.content)
            reached = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), target))
            if reached.split("/")[0] not in MEASURED_PACKAGES:
                return (
                    f"a link to {target}, outside {' and '.join(MEASURED_PACKAGES)}: what is found "
                    f"there is not the commit's."
                )
        elif self.content.startswith(_LFS_POINTER):
            return "a pointer of Git LFS: the file that it stands for is not in the commit."
        return None


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
            # A file of our own making, whatever else comes to lie there: no link is followed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            handle = os.open(place, flags, 0o777 if entry.mode == PROGRAM else 0o666)
            with os.fdopen(handle, "wb") as file:
                file.write(entry.content)
    return gave_way


def packages_of(commit: str, repository: Repository) -> bytes:
    """Bytes that are equal for commits with the same measured packages; empty if there are none.

    Raises GitError if the repository lacks the commit.
    """
    return repository.ask(
        *("ls-tree", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES), variables=AS_IT_IS
    )


def lay_out(commit: str, repository: Repository, folder: Path) -> Path:
    """The folder below `folder` with a commit's measured packages; it is made on first use.

    `commit` is a full hash. The folder is made as a whole or not at all, also if several processes
    make it at the same time. The least recently used folders are removed.

    Raises GitError if the repository lacks the commit or a part of it, or it has paths that lead
    elsewhere or exclude each other.
    """
    directory = folder / commit
    if not (directory / COMMIT_MARKER).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process is removing them, too
            _forget_old(folder)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
        try:
            _fill(partial, commit, repository)
            try:
                partial.rename(directory)
            except OSError:
                # Somebody else has made it meanwhile, or it lost its marker.
                if not (directory / COMMIT_MARKER).is_file():
                    shutil.rmtree(directory)
                    partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    os.utime(directory)
    return directory


def _fill(partial: Path, commit: str, repository: Repository) -> None:
    entries = _entries(commit, repository)
    write_entries(partial, entries)
    remarks = [
        f"commit {commit[:8]}: {entry.path} is {kind}"
        for entry in entries
        if (kind := entry.why_not_the_commits())
    ]
    if remarks:
        (partial / REMARKS).write_bytes(os.fsencode("\0".join(remarks)))
    (partial / COMMIT_MARKER).write_text(commit + "\n")
    partial.chmod(0o755)


def _entries(commit: str, repository: Repository) -> list[TreeEntry]:
    """The files of a commit's measured packages; none if it has none of the packages."""
    listing = ("ls-tree", "-r", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES)
    listed = [entry.partition("\t") for entry in repository.names(*listing, variables=AS_IT_IS)]
    paths = [path for _, _, path in listed]
    if away := next((path for path in paths if _ODD & {*path.split("/")}), None):
        raise GitError(f"commit {commit[:8]} has a path that leads elsewhere: {away!r}.")
    taken = Counter(paths)
    taken.update({str(folder) for path in paths for folder in PurePosixPath(path).parents})
    if twice := next((path for path in paths if taken[path] > 1), None):
        raise GitError(f"commit {commit[:8]} has two things at the path {twice!r}.")
    heads = {path: head.split(" ") for head, _, path in listed}
    blobs = {path: name for path, (mode, _, name) in heads.items() if mode != SUBMODULE}
    contents = dict(zip(blobs, repository.blobs(list(blobs.values())), strict=True))
    return [TreeEntry(path, heads[path][0], contents.get(path, b"")) for path in paths]


def _forget_old(folder: Path) -> None:
    """Remove whole folders but for those used last, and partial ones that were left behind."""
    paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    whole = [path for path in paths if not path.name.startswith(_PARTIAL)]
    # Renamed first, so that what an interruption leaves is never taken for a whole one.
    stale = [path.rename(path.with_name(_PARTIAL + path.name)) for path in whole[:-_KEPT_FOLDERS]]
    for path in paths:
        if path not in whole and time.time() - path.stat().st_mtime > _STALE_SECONDS:
            stale.append(path)
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()
