"""The commits between a good and a bad one, in the order in which they could have gone wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.snapshots import GitError, run_git


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
    if good == bad:
        raise Refused(f"{good[:8]} is both the good and the bad commit; give two of them.")
    if not _is_ancestor(good, bad, repository):
        hint = " Are they the wrong way round?" if _is_ancestor(bad, good, repository) else ""
        raise Refused(
            f"{good[:8]} is no ancestor of {bad[:8]}, so no commit between them made the "
            f"difference.{hint}"
        )
    listed = run_git(
        *("log", "--first-parent", "--reverse", "-z", "--format=%H%x00%an%x00%s%x00%P"),
        *(bad, f"^{good}", "--"),
        directory=repository,
    )
    # Not by lines: a subject may hold what Python takes for the end of one.
    fields = iter(listed.split("\0")[:-1])
    entries = list(zip(fields, fields, fields, fields, strict=True))
    if entries[0][3].split()[:1] != [good]:
        raise Refused(
            f"{good[:8]} came into {bad[:8]} by a merge: it is not on its line of first parents. "
            f"Give a commit that is (git log --first-parent {bad[:8]})."
        )
    return [HistoryCommit(commit, author, subject) for commit, author, subject, _ in entries]


def _is_ancestor(older: str, newer: str, repository: Path) -> bool:
    try:
        run_git("merge-base", "--is-ancestor", older, newer, directory=repository)
    except GitError:
        return False
    return True


def described(commit: str, repository: Path) -> HistoryCommit | None:
    """A commit with its author and subject; None where the repository does not hold it."""
    try:
        line = run_git(
            *("log", "--max-count=1", "--format=%H%x00%an%x00%s", commit, "--"),
            directory=repository,
        )
    except GitError:
        return None
    found, author, subject = line.rstrip("\n").split("\0")
    return HistoryCommit(found, author, subject)
