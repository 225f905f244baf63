"""What a commit changes, file by file, and commits that hold a part of it.

The user's repository is only read: commits of parts lie in a repository of their own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.git.repository import Repository

_NOTHING = "0" * 6
_PROSE = {".md", ".rst", ".adoc", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
_PROSE_NAMES = {"authors", "changelog", "changes", "history", "license", "news", "notice", "readme"}
_PROSE_FOLDERS = {"doc", "docs"}
_PERSON = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    # The same part of the same commit has the same hash whenever it is made.
    for field, value in (
        ("NAME", "kvtrail"),
        ("EMAIL", "kvtrail@localhost"),
        ("DATE", "2000-01-01T00:00:00+0000"),
    )
}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A file, link or submodule that a change puts at a path; mode 0 takes it away."""

    path: str
    mode: str
    name: str  # of its object


@dataclass(frozen=True, slots=True)
class FileChange:
    """One change of a commit, that is made as a whole: to a file, or to several where paths clash.

    A renamed file is one change, that takes the old path away and puts the new one there.
    """

    entries: tuple[IndexEntry, ...]
    label: str

    @property
    def paths(self) -> list[str]:
        """All that it touches."""
        return [entry.path for entry in self.entries]

    @property
    def is_prose(self) -> bool:
        """Whether programs hardly ever read what it touches: documents, pictures, change logs."""
        return all(map(_is_prose, self.paths))


def changes_between(base: str, head: str, repository: Repository) -> list[FileChange]:
    """The changes that make the files of a commit those of another, in the order of their paths.

    Both are full hashes. Raises GitError if the repository lacks one of them.
    """
    fields = iter(
        repository.names(
            *("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--find-renames"),
            *("--no-ext-diff", "--ignore-submodules=none", base, head),
        )
    )
    changes: list[FileChange] = []
    for head_of_line in fields:
        _, mode, _, name, kind = head_of_line.removeprefix(":").split(" ")
        path = next(fields)
        if kind[0] == "R":
            new = next(fields)
            entries = (IndexEntry(path, _NOTHING, "0" * len(name)), IndexEntry(new, mode, name))
            changes.append(FileChange(entries, f"{path} → {new}"))
        else:
            changes.append(FileChange((IndexEntry(path, mode, name),), path))
    return _without_clashes(changes)


class PartCommits:
    """Commits of a base with some of the changes that lead to another commit.

    The base is a full hash in the repository that is given. `repository` is one of this class's
    own, below `folder`: it holds the commits that were made, and all of the other's.
    """

    def __init__(self, base: str, repository: Repository, folder: Path) -> None:
        self._base = base
        self._index = {"GIT_INDEX_FILE": str(folder / "index")}
        path = repository.path
        kind = repository.line("rev-parse", "--show-object-format")
        users = path / repository.line("rev-parse", "--git-path", "objects")
        # Where git sees that an object is there already, it dates it anew: it must not see the
        # user's where it writes. So what is written and what is read are two repositories.
        self._written = Repository(folder / "written.git")
        self.repository = Repository(folder / "parts.git")
        for made in (self._written, self.repository):
            Repository(path).ask(
                *("init", "--quiet", "--bare", "--template=", f"--object-format={kind}"),
                str(made.path),
            )
        borrowed = self.repository.path / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        places = (self._written.path / "objects", users)
        borrowed.write_text("".join(f"{_quoted(place.resolve())}\n" for place in places))

    def commit(self, changes: Sequence[FileChange]) -> str:
        """The full hash of the base with these changes made; GitError if git cannot make it."""
        entries = [entry for change in changes for entry in change.entries]
        lines = [f"{entry.mode} {entry.name}\t{entry.path}\0" for entry in entries]
        ask = self.repository.ask
        ask("read-tree", self._base, variables=self._index)
        given = os.fsencode("".join(lines))
        ask("update-index", "-z", "--index-info", given=given, variables=self._index)
        tree = self._written.line("write-tree", "--missing-ok", variables=self._index)
        message = "a part of a commit"
        return self._written.line("commit-tree", "-m", message, tree, variables=_PERSON)


def _without_clashes(changes: Sequence[FileChange]) -> list[FileChange]:
    """The same with those made one of which needs the path of another as a folder, or its end."""
    found: list[FileChange] = []
    for change in changes:
        clashing = [one for one in found if _clash(one.paths, change.paths)]
        together = [*clashing, change]
        entries = tuple(entry for one in together for entry in one.entries)
        label = ", ".join(one.label for one in together)
        found = [one for one in found if one not in clashing] + [FileChange(entries, label)]
    return found


def _clash(first: Collection[str], second: Collection[str]) -> bool:
    return any(
        one.startswith(f"{other}/") or other.startswith(f"{one}/") or one == other
        for one in first
        for other in second
    )


def _quoted(path: Path) -> str:
    """A path as git's list of borrowed objects takes it."""
    text = str(path)
    if text.isprintable() and not set('"\\#') & set(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _is_prose(path: str) -> bool:
    *folders, name = path.lower().split("/")
    stem, dot, suffix = name.partition(".")
    is_document = stem in _PROSE_NAMES and dot + suffix in ("", ".txt")
    return is_document or Path(name).suffix in _PROSE or bool(_PROSE_FOLDERS & set(folders[:1]))
