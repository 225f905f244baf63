"""The commits between a good and a bad one, in the order in which they could have gone wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.repository import NoRepository, Repository


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """A commit by its full hash, with its author's name and subject."""

    hash: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """The first eight digits of the hash."""
        return self.hash[:8]

    def to_json(self) -> dict[str, str]:
        """The commit as JSON-ready values."""
        return {"hash": self.hash, "author": self.author, "subject": self.subject}


def commits_between(good: str, bad: str, repository: Path) -> list[HistoryCommit]:
    """The commits after `good` up to and with `bad`, oldest first, first parents only.

    What a merge brought in counts as one commit, the merge: only it changed this line of history.

    Parameters
    ----------
    good, bad
        Full hashes.
    repository
        A checkout that has both.

    Raises
    ------
    Refused
        If `good` does not lie before `bad` on its line of first parents.
    """
    git = Repository(repository)
    if good == bad:
        raise Refused(f"{good[:8]} is both the good and the bad commit; give two of them.")
    if not git.is_ancestor(good, bad):
        hint = " Are they the wrong way round?" if git.is_ancestor(bad, good) else ""
        raise Refused(
            f"{good[:8]} is no ancestor of {bad[:8]}, so no commit between them made the "
            f"difference.{hint}{shallow_hint(git)}"
        )
    listed = git.ask("rev-list", "--first-parent", "--reverse", bad, f"^{good}", "--")
    commits = list(git.commits(listed.decode().split()).values())
    if commits[0].parents[:1] != (good,):
        raise Refused(
            f"{good[:8]} came into {bad[:8]} by a merge: it is not on its line of first parents. "
            f"Give a commit that is (git log --first-parent {bad[:8]})."
        )
    return [HistoryCommit(commit.hash, commit.author, commit.subject) for commit in commits]


def described(commit: str, repository: Path) -> HistoryCommit | None:
    """A commit with its author and subject; None where the repository does not hold it."""
    try:
        found = Repository(repository).commits([commit]).get(commit)
    except NoRepository:
        return None
    return None if found is None else HistoryCommit(commit, found.author, found.subject)


def shallow_hint(git: Repository) -> str:
    """A sentence to add where a commit may be in a part of the history that is missing."""
    if not git.is_shallow():
        return ""
    return (
        " This repository is shallow, so it may be in the part that is missing: fetch that "
        "with `git fetch --unshallow`."
    )
