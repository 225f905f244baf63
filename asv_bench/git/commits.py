"""Which commits there are: by name, their order, a range, and one line of first parents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.repository import Commit, GitError, NoRepository, Repository

WORKING_TREE = "."
"""Names the working tree as it stands where a commit is asked for."""


def resolve_revision(revision: str, root: Path) -> Commit:
    """The commit that a revision names in the repository at `root`.

    Raises Refused if git knows no such commit.
    """
    if not revision or revision.startswith("-"):
        raise Refused(f"{revision!r} names no commit; give a hash, a branch, a tag or HEAD~3.")
    repository = Repository(root)
    try:
        found = repository.resolve(revision)
    except GitError as error:
        raise Refused(f"{revision!r} could not be looked up: {error}") from None
    if found is None:
        raise Refused(
            f"git knows no commit called {revision!r} in {root}; give a hash, a branch, a tag, "
            f"HEAD~3, or . for the working tree as it stands.{repository.shallow_hint()}"
        )
    return repository.commits([found])[found]


def commits_between(good: str, bad: str, repository: Repository) -> list[Commit]:
    """The commits after `good` up to and with `bad`, oldest first, first parents only.

    A merge counts as one commit, with all that it brought in. Both ends are full hashes.

    Raises Refused if `good` does not lie before `bad` on its line of first parents.
    """
    if good == bad:
        raise Refused(f"{good[:8]} is both the good and the bad commit; give two of them.")
    if not repository.is_ancestor(good, bad):
        hint = " Are they the wrong way round?" if repository.is_ancestor(bad, good) else ""
        raise Refused(
            f"{good[:8]} is no ancestor of {bad[:8]}, so no commit between them made the "
            f"difference.{hint}{repository.shallow_hint()}"
        )
    commits = repository.commits(repository.first_parents(bad, f"^{good}"))
    found = list(commits.values())
    if found[0].parents[:1] != (good,):
        raise Refused(
            f"{good[:8]} came into {bad[:8]} by a merge: it is not on its line of first parents. "
            f"Give a commit that is (git log --first-parent {bad[:8]})."
        )
    return found


def last_change(commit: str, repository: Repository, pathspecs: Sequence[str]) -> Commit | None:
    """The newest commit up to one, along first parents, that changes these paths (none: any).

    None where there is none with a commit before it.
    """
    words = ("rev-list", "--first-parent", "--max-count=1", commit, "--", *pathspecs)
    try:
        found = repository.commits(repository.ask(*words).decode().split())
    except GitError:
        return None
    return next((one for one in found.values() if one.parents), None)


def commits_in_range(text: str, repository: Repository) -> list[Commit]:
    """The commits of a range as git understands it, oldest first, first parents only.

    Raises Refused if the repository lacks part of its history, or the range is unknown or empty.
    """
    if text.startswith("-"):
        raise Refused(f"{text!r} is an option of git, not a range of commits.")
    if repository.is_shallow():
        raise Refused(
            "this repository is shallow: part of its history is missing, and its oldest commit "
            "hides many. Fetch the rest with `git fetch --unshallow`."
        )
    try:
        commits = repository.first_parents(text)
    except GitError as error:
        raise Refused(
            f"git knows no commits called {text!r}; give a range such as HEAD~5..HEAD. Its own "
            f"words: {error}"
        ) from None
    if not commits:
        raise Refused(
            f"the range {text!r} holds no commits; a range runs from the older, which is left out, "
            f"to the newer."
        )
    return list(repository.commits(commits).values())


def commits_in_order(dates: Mapping[str, int], repository: Repository) -> list[Commit]:
    """Commits, parents before children; `dates` tells by full hash when each was committed.

    Dates alone cannot order them: commits of one rebase share theirs. Commits that the repository
    does not hold, or all if there is none, stand where their date puts them.
    """
    try:
        # A HEAD that is no branch's is among them.
        listed = repository.ask("rev-list", "--all", "--topo-order", "--reverse").decode().split()
    except NoRepository:
        listed = []
    measured = [commit for commit in listed if commit in dates]
    known = repository.commits(measured) if measured else {}
    unknown = sorted(set(dates) - set(known), key=lambda commit: (dates[commit], commit))
    ordered: list[Commit] = []
    for commit in known.values():
        while unknown and dates[unknown[0]] < dates[commit.hash]:
            ordered.append(Commit(unknown.pop(0)))
        ordered.append(commit)
    return ordered + [Commit(commit) for commit in unknown]


def commits_on_line(
    dates: Mapping[str, int], repository: Repository, tip: str = "HEAD"
) -> tuple[list[Commit], int]:
    """The commits on the line of first parents that ends at `tip`; how many are not on it.

    Only on such a line is a commit's neighbour its ancestor. Where there is no repository, dates
    order all commits.
    """
    measured = {commit.hash: commit for commit in commits_in_order(dates, repository)}
    try:
        line = repository.first_parents(tip)
    except GitError:
        return list(measured.values()), 0
    on_line = [measured[commit] for commit in line if commit in measured]
    return on_line, len(measured) - len(on_line)
