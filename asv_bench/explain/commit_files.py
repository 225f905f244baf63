"""Which commits lie between two ends, and which files differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asv_bench.git.repository import Commit
from asv_bench.subjects.declared import DeclaredSubject

_COMMITS, _FILES = 12, 20
"""How many are kept; there may be thousands."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that differs, and how many lines were added and removed; None: it is no text."""

    path: str
    added: int | None
    removed: int | None

    def text(self) -> str:
        """The file with its lines."""
        return self.path + ("" if self.added is None else f" (+{self.added} -{self.removed})")


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """What was committed between two ends, and what came of it; counts are of all."""

    commits: tuple[Commit, ...]  # that touch what is measured, the newest first
    commit_count: int
    files: tuple[ChangedFile, ...]  # those with the most lines first
    file_count: int

    def sentences(self, shown: int) -> Iterator[str]:
        """So many files and commits in words."""
        if not self.files:
            yield "No file differs in what is measured."
            return
        files = [one.text() for one in self.files[:shown]]
        more = self.file_count - len(files)
        count = "1 file differs" if self.file_count == 1 else f"{self.file_count} files differ"
        yield f"{count}: {', '.join(files)}{f' and {more} more' if more else ''}."
        commits = [
            f"{one.short} {one.subject}{f' ({one.author})' if one.author else ''}"
            for one in self.commits[:shown]
        ]
        if more := self.commit_count - len(commits):
            commits.append(f"{more} more")
        if commits:
            is_one = self.commit_count == 1
            count = "One commit lies" if is_one else f"{self.commit_count} commits lie"
            yield f"{count} between: {'; '.join(commits)}."

    def to_json(self) -> dict[str, Any]:
        """The same as JSON-ready values."""
        return {**asdict(self), "commits": [commit.to_json() for commit in self.commits]}


def files_between(base: str, head: str, subject: DeclaredSubject) -> CommitFiles | None:
    """What lies between two commits, given by full hashes; None along labels."""
    if subject.labels:
        return None
    old, new = subject.repository_of(base), subject.repository_of(head)
    paths = ("--", *subject.pathspecs)
    variables: dict[str, str] = {}
    hashes: list[str] = []
    if old == new:
        between = new.ask("rev-list", "--no-merges", f"{base}..{head}", *paths)
        hashes = between.decode().split()
    else:
        # The objects of both ends, wherever they are.
        objects = old.path.resolve() / old.line("rev-parse", "--git-path", "objects")
        variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(objects)
    diff = ("diff-tree", "-r", "-z", "--numstat", "--find-renames", base, head)
    listed = _files(new.names(*diff, *paths, variables=variables))
    files = sorted(listed, key=lambda one: -((one.added or 0) + (one.removed or 0)))
    commits = new.commits(hashes[:_COMMITS])
    return CommitFiles(tuple(commits.values()), len(hashes), tuple(files[:_FILES]), len(files))


def _files(listed: Sequence[str]) -> Iterator[ChangedFile]:
    """The entries of `git diff --numstat -z`; a renamed file has its two names in entries apart."""
    entries = iter(listed)
    for entry in entries:
        added, removed, path = entry.split("\t", 2)
        if not path:
            next(entries)
            path = next(entries)
        numbers = [int(text) if text.isdecimal() else None for text in (added, removed)]
        yield ChangedFile(path, *numbers)
