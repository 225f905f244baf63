"""Which commits lie between two ends, and which files differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from asv_bench.git.repository import Commit, Repository

_COMMITS, _FILES = 12, 20
"""How many are kept; there may be thousands."""


class HasFiles(Protocol):
    """What is measured of commits, as files of a repository."""

    @property
    def pathspecs(self) -> Sequence[str]:
        """Paths, as git takes them, that hold all that is measured; none: all paths."""
        ...

    def repository_of(self, commit: str) -> Repository:
        """Where a commit's files are; a snapshot of the working tree has a repository apart."""
        ...


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs, and how many lines were added and removed; None: it is no text."""

    path: str
    added: int | None
    removed: int | None

    @property
    def lines(self) -> int:
        """Lines that differ."""
        return (self.added or 0) + (self.removed or 0)

    def text(self) -> str:
        """The file with its lines."""
        if self.added is None or self.removed is None:
            return self.path
        return f"{self.path} (+{self.added} -{self.removed})"


@dataclass(frozen=True, slots=True)
class Changes:
    """What was committed between two ends, and what came of it.

    Attributes
    ----------
    commits
        The newest that touch what is measured, newest first.
    commit_count, file_count
        Of all commits and files, those that are not listed too.
    files
        Those with the most lines first.
    """

    commits: tuple[Commit, ...]
    commit_count: int
    files: tuple[FileChange, ...]
    file_count: int

    def sentences(self, shown: int) -> Iterator[str]:
        """So many files and commits in words."""
        if not self.file_count:
            yield "No file differs in what is measured."
            return
        files = ", ".join(one.text() for one in self.files[:shown])
        count = "1 file differs" if self.file_count == 1 else f"{self.file_count} files differ"
        yield f"{count}: {files}{self._more(shown)}."
        if self.commit_count == 1:
            yield f"One commit lies between: {_described(self.commits[0])}."
        elif self.commit_count:
            listed = "; ".join(map(_described, self.commits[:shown]))
            more = self.commit_count - len(self.commits[:shown])
            rest = f"; {more} more" if more else ""
            yield f"{self.commit_count} commits lie between: {listed}{rest}."

    def _more(self, shown: int) -> str:
        more = self.file_count - len(self.files[:shown])
        return f" and {more} more" if more else ""

    def to_json(self) -> dict[str, Any]:
        """The changes as JSON-ready values."""
        return {
            "commits": [commit.to_json() for commit in self.commits],
            "commit_count": self.commit_count,
            "files": [asdict(file) for file in self.files],
            "file_count": self.file_count,
        }


def changes_between(base: str, head: str, subject: HasFiles) -> Changes:
    """What lies between two commits, given by full hashes."""
    old, new = subject.repository_of(base), subject.repository_of(head)
    paths = ("--", *subject.pathspecs)
    # The objects of both ends, wherever they are.
    variables = {} if old == new else {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(_objects(old))}
    diff = ("diff-tree", "-r", "-z", "--numstat", "--find-renames", base, head)
    files = sorted(
        _files(new.names(*diff, *paths, variables=variables)), key=lambda one: -one.lines
    )
    hashes: list[str] = []
    if old == new:
        listed = new.ask("rev-list", "--no-merges", f"{base}..{head}", *paths)
        hashes = listed.decode().split()
    commits = new.commits(hashes[:_COMMITS])
    return Changes(tuple(commits.values()), len(hashes), tuple(files[:_FILES]), len(files))


def _objects(repository: Repository) -> Path:
    path = Path(repository.line("rev-parse", "--git-path", "objects"))
    return path if path.is_absolute() else repository.path.resolve() / path


def _files(listed: Sequence[str]) -> Iterator[FileChange]:
    """The entries of `git diff --numstat -z`; a renamed file has its two names in entries apart."""
    entries = iter(listed)
    for entry in entries:
        added, removed, path = entry.split("\t", 2)
        if not path:
            next(entries)
            path = next(entries)
        numbers = [int(text) if text.isdecimal() else None for text in (added, removed)]
        yield FileChange(path, *numbers)


def _described(commit: Commit) -> str:
    author = f" ({commit.author})" if commit.author else ""
    return f"{commit.short} {commit.subject}{author}"
