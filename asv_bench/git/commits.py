"""What git knows about the commits on a page: their order and their subjects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asv_bench.git.snapshots import GitError, run_git
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
    history = _history(repository)
    known = [commit for commit in history if commit in dates]
    unknown = sorted(set(dates) - set(known), key=lambda commit: (dates[commit], commit))
    ordered: list[str] = []
    for commit in known:
        while unknown and dates[unknown[0]] < dates[commit]:
            ordered.append(unknown.pop(0))
        ordered.append(commit)
    ordered += unknown
    return [Commit(commit, dates[commit], history.get(commit, "")) for commit in ordered]


def _history(repository: Path) -> dict[str, str]:
    """Subjects by hash, parents before children; empty where there is no repository."""
    arguments = ("log", "--all", "HEAD", "--topo-order", "--reverse", "--format=%H%x00%s")
    try:
        lines = run_git(*arguments, directory=repository).splitlines()
    except GitError:
        return {}
    return dict(line.split("\0", 1) for line in lines if "\0" in line)
