"""The measured packages of a commit, as the commit has them: byte for byte, mode for mode.

`git archive` and `git checkout` would change them as attributes, filters and settings say
(export-ignore, ident, line ends); their contents come straight from the commit instead.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from asv_bench.git.repository import AS_IT_IS, GitError, Repository
from asv_bench.git.tree_entries import LINK, SUBMODULE, TreeEntry, write_entries
from asv_bench.process.contract import COMMIT_MARKER, MEASURED_PACKAGES

REMARKS = "REMARKS"
"""A file beside the packages of a commit with sentences about them, a NUL between two."""
_KEPT_FOLDERS = 96
_PARTIAL = ".partial-"
_STALE_SECONDS = 3600.0
_ODD = {"", ".", "..", ".git"}
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class CommitTree:
    """The files of a commit's measured packages; no entries if it has none of the packages."""

    commit: str
    entries: tuple[TreeEntry, ...]

    @classmethod
    def read(cls, commit: str, repository: Repository) -> CommitTree:
        """Read it from a repository; `commit` is a full hash.

        Raises GitError if the repository lacks it or a part of it, or it has paths that lead
        elsewhere or exclude each other.
        """
        listed = repository.names(
            *("ls-tree", "-r", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES),
            variables=AS_IT_IS,
        )
        fields = [entry.partition("\t") for entry in listed]
        heads = [head.split(" ") for head, _, _ in fields]
        paths = [path for _, _, path in fields]
        if away := next((path for path in paths if _ODD & {*path.split("/")}), None):
            raise GitError(f"commit {commit[:8]} has a path that leads elsewhere: {away!r}.")
        taken = Counter(paths)
        taken.update({str(folder) for path in paths for folder in PurePosixPath(path).parents})
        if twice := next((path for path in paths if taken[path] > 1), None):
            raise GitError(f"commit {commit[:8]} has two things at the path {twice!r}.")
        blobs = [name for mode, _, name in heads if mode != SUBMODULE]
        contents = iter(repository.objects(blobs, real=True))
        return cls(
            commit,
            tuple(
                TreeEntry(path, mode, b"" if mode == SUBMODULE else next(contents)[1])
                for (mode, _, _), path in zip(heads, paths, strict=True)
            ),
        )

    def remarks(self) -> list[str]:
        """A sentence for each entry that does not stand for the commit's own files."""
        return [
            f"commit {self.commit[:8]}: {entry.path} is {kind}"
            for entry in self.entries
            if (kind := _why_not_the_commits(entry))
        ]


def packages_of(commit: str, repository: Repository) -> bytes:
    """Bytes that are equal for commits with the same measured packages; empty if there are none.

    Raises GitError if the repository lacks the commit.
    """
    return repository.ask(
        *("ls-tree", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES), variables=AS_IT_IS
    )


def lay_out(commit: str, repository: Repository, folder: Path) -> Path:
    """The folder below `folder` with a commit's measured packages; it is made on first use.

    It is made as a whole or not at all, also if several processes make it at the same time. The
    least recently used folders are removed.

    Raises GitError if the repository lacks the commit or a part of it, or it has paths that lead
    elsewhere.
    """
    directory = folder / commit
    if not (directory / COMMIT_MARKER).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _forget_old(folder)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
        try:
            _fill(partial, CommitTree.read(commit, repository))
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


def _fill(partial: Path, tree: CommitTree) -> None:
    write_entries(partial, tree.entries)
    if remarks := tree.remarks():
        (partial / REMARKS).write_bytes(os.fsencode("\0".join(remarks)))
    (partial / COMMIT_MARKER).write_text(tree.commit + "\n")
    partial.chmod(0o755)


def _forget_old(folder: Path) -> None:
    paths = sorted(folder.iterdir(), key=_used_at)
    partial = [path for path in paths if path.name.startswith(_PARTIAL)]
    stale = [path for path in partial if time.time() - _used_at(path) > _STALE_SECONDS]
    for path in [path for path in paths if path not in partial][:-_KEPT_FOLDERS]:
        # Renamed first, so that what an interruption leaves is never taken for a whole one.
        stale.append(path.rename(path.with_name(_PARTIAL + path.name)))
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process was quicker to remove it
        return 0.0


def _why_not_the_commits(entry: TreeEntry) -> str | None:
    if entry.mode == SUBMODULE:
        return "a submodule, whose files are in another repository: its folder is empty here."
    if entry.mode == LINK:
        target = os.fsdecode(entry.content)
        reached = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), target))
        if reached.split("/")[0] not in MEASURED_PACKAGES:
            return (
                f"a link to {target}, outside {' and '.join(MEASURED_PACKAGES)}: what is found "
                f"there is not the commit's."
            )
    elif entry.content.startswith(_LFS_POINTER):
        return "a pointer of Git LFS: the file that it stands for is not in the commit."
    return None
