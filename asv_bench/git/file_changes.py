"""What a commit changes, file by file, and commits that hold a part of it.

The user's repository is only read: commits of parts lie in a repository of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_bench.git.repository import PERSON, Repository, quoted

_PROSE = {".md", ".rst", ".adoc", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
_PROSE_NAMES = {"authors", "changelog", "changes", "history", "license", "news", "notice", "readme"}


@dataclass(frozen=True, slots=True)
class FileChange:
    """One change of a commit, that is made as a whole: to a file, or to several where paths clash.

    A renamed file is one change, that takes the old path away and puts the new one there.
    """

    paths: tuple[str, ...]  # all that it touches
    index_info: str  # what `git update-index -z --index-info` makes it of
    label: str

    @property
    def is_prose(self) -> bool:
        """Whether programs hardly ever read what it touches: documents, pictures, change logs."""
        return all(map(_is_prose, self.paths))

    def clashes_with(self, other: FileChange) -> bool:
        """Whether one needs the path of the other as a folder, or its end."""
        ours, others = ([f"{path}/" for path in one.paths] for one in (self, other))
        return any(a.startswith(b) or b.startswith(a) for a in ours for b in others)


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
        _, mode, gone, name, kind = head_of_line.removeprefix(":").split(" ")
        path = next(fields)
        change = FileChange((path,), f"{mode} {name}\t{path}\0", path)
        if kind[0] == "R":
            new = next(fields)
            moved = f"000000 {'0' * len(gone)}\t{path}\0{mode} {name}\t{new}\0"
            change = FileChange((path, new), moved, f"{path} → {new}")
        together = [*(one for one in changes if one.clashes_with(change)), change]
        changes = [one for one in changes if one not in together]
        merged = FileChange(
            tuple(path for one in together for path in one.paths),
            "".join(one.index_info for one in together),
            ", ".join(one.label for one in together),
        )
        changes.append(merged)
    return changes


class PartCommits:
    """Commits of a base with some of the changes that lead to another commit.

    The base is a full hash in the repository that is given. `repository` is one of this class's
    own, below `folder`: it holds the commits that were made, and all of the other's.
    """

    def __init__(self, base: str, repository: Repository, folder: Path) -> None:
        self._base = base
        self._index = {"GIT_INDEX_FILE": str(folder / "index")}
        kind = repository.line("rev-parse", "--show-object-format")
        users = repository.path / repository.line("rev-parse", "--git-path", "objects")
        # Where git sees that an object is there already, it dates it anew: it must not see the
        # user's where it writes. So what is written and what is read are two repositories.
        self._written = Repository(folder / "written.git")
        self.repository = Repository(folder / "parts.git")
        init = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
        for made in (self._written, self.repository):
            repository.ask(*init, str(made.path))
        borrowed = self.repository.path / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        places = (self._written.path / "objects", users)
        borrowed.write_text("".join(f"{quoted(place.resolve())}\n" for place in places))

    def commit(self, changes: Sequence[FileChange]) -> str:
        """The full hash of the base with these changes made; GitError if git cannot make it."""
        ask = self.repository.ask
        ask("read-tree", self._base, variables=self._index)
        given = os.fsencode("".join(change.index_info for change in changes))
        ask("update-index", "-z", "--index-info", given=given, variables=self._index)
        tree = self._written.line("write-tree", "--missing-ok", variables=self._index)
        message = "a part of a commit"
        return self._written.line("commit-tree", "-m", message, tree, variables=PERSON)


def _is_prose(path: str) -> bool:
    *folders, name = path.lower().split("/")
    stem, dot, suffix = name.partition(".")
    is_document = stem in _PROSE_NAMES and dot + suffix in ("", ".txt")
    return is_document or Path(name).suffix in _PROSE or folders[:1] in (["doc"], ["docs"])
