"""How a commit's engine gets to a process: `engine` and `kernels` laid out once, by hash.

Nothing is installed, and git is only read from: no working tree, index, branch, stash or worktree
registration is touched, so that an interruption leaves nothing to clean up in the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.commit_tree import REMARKS, lay_out, packages_of
from asv_bench.git.repository import Commit, GitError, Repository
from asv_bench.git.working_tree import snapshot
from asv_bench.output.console import make_console, print_sentences
from asv_bench.process.borrowed_paths import search_path
from asv_bench.process.contract import MEASURED_PACKAGES
from asv_bench.process.samples import CommitUnusable

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


class CommitSources:
    """Finds commits of a checkout, and lays out their measured packages in an ignored folder.

    No remote is asked. Refused if Python's search path cannot hold the checkout's path.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._snapshots = root / ".asv" / "worktree.git"
        # Where commits lie that are not the checkout's own.
        self._elsewhere: dict[str, Repository] = {}
        # It holds `commits/HASH/engine`, `commits/HASH/kernels` and `commits/HASH/COMMIT`.
        self.environment = root / ".asv" / "verdicts"
        # Said before anything is measured: its commits lie on the search path of processes.
        search_path([str(self.environment)])
        # Of commits laid out so far that do not hold all of their own files, such as those with
        # submodules; each is printed once.
        self.remarks: list[str] = []

    def resolve(self, revision: str) -> Commit:
        """The commit that a revision names: HEAD~3, a branch, a tag, a hash, or "." for the tree.

        The working tree's hash is that of a snapshot.

        Raises Refused if git knows no such commit, and GitError if the working tree holds nothing
        to measure.
        """
        if revision == WORKING_TREE:
            commit = snapshot(self.root, self._snapshots)
            self.add(commit, Repository(self._snapshots))
            # At once: the next snapshot may replace this one.
            self.checkout(commit)
            return Commit(commit, "the working tree as it stands")
        return resolve_revision(revision, self.root)

    def add(self, commit: str, repository: Repository) -> None:
        """Know a commit, given by its full hash, that lies in another repository."""
        self._elsewhere[commit] = repository

    def are_same(self, base: str, head: str) -> bool:
        """Whether two commits have the same measured packages; False if they have none at all."""
        packages = packages_of(base, self.repository_of(base))
        return bool(packages) and packages == packages_of(head, self.repository_of(head))

    def checkout(self, commit: str) -> Path:
        """The folder with the commit's measured packages; it is made on first use.

        Raises CommitUnusable if the commit has none of them, or git does not have the commit.
        """
        folder = self.environment / "commits"
        try:
            directory = lay_out(commit, self.repository_of(commit), folder)
        except GitError as error:
            raise CommitUnusable(commit, f"git could not unpack it: {error}") from None
        if not any(os.path.lexists(directory / package) for package in MEASURED_PACKAGES):
            lacking = f"it has none of {', '.join(MEASURED_PACKAGES)}."
            raise CommitUnusable(commit, lacking, is_lacking=True)
        if (directory / REMARKS).is_file():
            remarks = os.fsdecode((directory / REMARKS).read_bytes()).split("\0")
            new = [remark for remark in remarks if remark not in self.remarks]
            self.remarks += new
            print_sentences(make_console(stderr=True), new)
        return directory

    def repository_of(self, commit: str) -> Repository:
        """The repository that holds a commit, given by its full hash."""
        return self._elsewhere.get(commit) or Repository(self.root)
