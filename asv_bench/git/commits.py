"""What git knows about the commits on a page: their order and their subjects."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from asv_bench.git.repository import GitError, NoRepository, Repository
from asv_bench.history.asv_results import Figure


@dataclass(frozen=True, slots=True)
class Commit:
    """A measured commit; `subject` is empty where the repository does not hold it."""

    hash: str
    committed_ms: int
    subject: str = ""

    @property
    def short(self) -> str:
        """The first eight digits of the hash."""
        return self.hash[:8]


def commits_in_order(figures: Iterable[Figure], repository: Path) -> list[Commit]:
    """The commits of `figures`, parents before children.

    Dates alone cannot order them: commits of one rebase share theirs. Commits that the repository
    does not hold stand where their date puts them.
    """
    dates = {figure.commit: figure.committed_ms for figure in figures}
    subjects = _subjects_in_order(dates, repository)
    unknown = sorted(set(dates) - set(subjects), key=lambda commit: (dates[commit], commit))
    ordered: list[str] = []
    for commit in subjects:
        while unknown and dates[unknown[0]] < dates[commit]:
            ordered.append(unknown.pop(0))
        ordered.append(commit)
    ordered += unknown
    return [Commit(commit, dates[commit], subjects.get(commit, "")) for commit in ordered]


def commits_on_line(
    figures: Iterable[Figure], repository: Path, tip: str = "HEAD"
) -> tuple[list[Commit], int]:
    """The commits of `figures` on one line of first parents, and how many are not on it.

    Only on such a line is a commit's neighbour its ancestor, so that what lies between them can
    have made a difference.

    Parameters
    ----------
    figures
        Of the commits.
    repository
        A checkout; where git knows none there is no line, and dates order all commits.
    tip
        The last commit of the line: a branch, a tag or a hash.

    Returns
    -------
    tuple
        Parents before children; and the number of commits of `figures` elsewhere.
    """
    measured = {commit.hash: commit for commit in commits_in_order(figures, repository)}
    try:
        listed = Repository(repository).ask(
            *("rev-list", "--first-parent", "--reverse", "--end-of-options", tip, "--")
        )
    except GitError:
        return list(measured.values()), 0
    on_line = [measured[commit] for commit in listed.decode().split() if commit in measured]
    return on_line, len(measured) - len(on_line)


def _subjects_in_order(wanted: Collection[str], repository: Path) -> dict[str, str]:
    """Subjects by hash, parents before children; empty where there is no repository."""
    git = Repository(repository)
    try:
        # A HEAD that is no branch's is on the page too.
        heads = [head] if (head := git.resolve("HEAD")) else []
        listed = git.ask("rev-list", "--all", *heads, "--topo-order", "--reverse")
    except NoRepository:
        return {}
    known = [commit for commit in listed.decode().split() if commit in wanted]
    return {commit: text.subject for commit, text in git.commits(known).items()}
