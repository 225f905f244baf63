"""How a commit's engine gets to a process: `engine` and `kernels` unpacked once, by hash.

Nothing is installed, and git is only read from: no working tree, index, branch, stash or worktree
registration is touched, so that an interruption leaves nothing to clean up in the repository.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import Refused
from asv_bench.git.commit_range import shallow_hint
from asv_bench.git.commit_tree import CommitTree, packages_of
from asv_bench.git.repository import GitError, Repository
from asv_bench.git.snapshots import snapshot
from asv_bench.output.console import make_console
from asv_bench.process.borrowed_paths import search_path
from asv_bench.process.contract import COMMIT_MARKER, MEASURED_PACKAGES
from asv_bench.process.samples import CommitUnusable

WORKING_TREE = "."
"""Names the working tree as it stands where a commit is asked for."""

_KEPT_CHECKOUTS = 96
_PARTIAL = ".partial-"
_REMARKS = "REMARKS"
_STALE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by its full hash, with its author's subject.

    `name` is what the user called it; the working tree's hash is that of a snapshot.
    """

    hash: str
    name: str
    subject: str

    @property
    def short(self) -> str:
        """The first eight digits of the hash."""
        return self.hash[:8]

    def to_json(self) -> dict[str, str]:
        """The commit as JSON-ready values."""
        return {"hash": self.hash, "name": self.name, "subject": self.subject}


class CommitSources:
    """Finds commits, and unpacks their measured packages below an ignored directory.

    Parameters
    ----------
    root
        The project's checkout: a clone or a linked worktree; no remote is asked.

    Raises
    ------
    Refused
        If Python's search path cannot hold the checkout's.

    Attributes
    ----------
    environment
        What the identity guard of the benchmarks calls the environment: it holds
        `commits/HASH/engine`, `commits/HASH/kernels` and `commits/HASH/COMMIT`.
    remarks
        Sentences about commits unpacked so far that do not hold all of their own files, such as
        those with submodules; each is printed once.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._snapshots = root / ".asv" / "worktree.git"
        self._in_snapshots: set[str] = set()
        self.environment = root / ".asv" / "verdicts"
        # Said before anything is measured: its commits lie on the search path of processes.
        search_path([str(self.environment)])
        self.remarks: list[str] = []

    def resolve(self, revision: str) -> Commit:
        """The commit that a revision names: HEAD~3, a branch, a tag, a hash, or "." for the tree.

        Raises
        ------
        Refused
            If git knows no such commit.
        GitError
            If the working tree holds nothing to measure.
        """
        if revision == WORKING_TREE:
            commit = snapshot(self._root, self._snapshots)
            self._in_snapshots.add(commit)
            # At once: the next snapshot may replace this one.
            self.checkout(commit)
            return Commit(commit, revision, "the working tree as it stands")
        if not revision or revision.startswith("-"):
            raise Refused(f"{revision!r} names no commit; give a hash, a branch, a tag or HEAD~3.")
        repository = Repository(self._root)
        try:
            found = repository.resolve(revision)
        except GitError as error:
            raise Refused(f"{revision!r} could not be looked up: {error}") from None
        if found is None:
            raise Refused(
                f"git knows no commit called {revision!r} in {self._root}; give a hash, a branch, "
                f"a tag, HEAD~3, or . for the working tree as it stands.{shallow_hint(repository)}"
            )
        return Commit(found, revision, repository.commits([found])[found].subject)

    def are_same(self, base: str, head: str) -> bool:
        """Whether two commits have the same measured packages; none at all are not called so."""
        packages = packages_of(base, self._repository_of(base))
        return bool(packages) and packages == packages_of(head, self._repository_of(head))

    def checkout(self, commit: str) -> Path:
        """The directory that holds the commit's measured packages, made where there is none.

        Raises
        ------
        CommitUnusable
            If the commit has none of them, or git does not have the commit.
        """
        directory = self.environment / "commits" / commit
        if not (directory / COMMIT_MARKER).is_file():
            self._unpack(commit, directory)
        # The least lately used ones are forgotten.
        os.utime(directory)
        self._tell(directory / _REMARKS)
        return directory

    def _tell(self, remarks: Path) -> None:
        if not remarks.is_file():
            return
        for remark in os.fsdecode(remarks.read_bytes()).split("\0"):
            if remark not in self.remarks:
                self.remarks.append(remark)
                make_console(stderr=True).print(
                    remark, highlight=False, markup=False, soft_wrap=True
                )

    def _unpack(self, commit: str, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._forget_old(directory.parent)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=directory.parent))
        try:
            try:
                tree = CommitTree.read(commit, self._repository_of(commit))
            except GitError as error:
                raise CommitUnusable(commit, f"git could not unpack it: {error}") from None
            if not tree.entries:
                raise CommitUnusable(
                    commit, f"it has none of {', '.join(MEASURED_PACKAGES)}.", is_lacking=True
                )
            tree.write(partial)
            if remarks := tree.remarks():
                (partial / _REMARKS).write_bytes(os.fsencode("\0".join(remarks)))
            (partial / COMMIT_MARKER).write_text(commit + "\n")
            partial.chmod(0o755)
            try:
                partial.rename(directory)
            except OSError:
                # Somebody else has made it meanwhile, or it lost its marker.
                if not (directory / COMMIT_MARKER).is_file():
                    shutil.rmtree(directory)
                    partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _repository_of(self, commit: str) -> Repository:
        return Repository(self._snapshots if commit in self._in_snapshots else self._root)

    def _forget_old(self, folder: Path) -> None:
        partial: list[Path] = []
        whole: list[Path] = []
        for path in folder.iterdir():
            (partial if path.name.startswith(_PARTIAL) else whole).append(path)
        whole.sort(key=_used_at)
        stale = [path for path in partial if time.time() - _used_at(path) > _STALE_SECONDS]
        for path in whole[:-_KEPT_CHECKOUTS]:
            # Renamed first, so that what an interruption leaves is never taken for a checkout.
            stale.append(path.rename(path.with_name(_PARTIAL + path.name)))
        for path in stale:
            shutil.rmtree(path, ignore_errors=True)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process was quicker to forget it
        return 0.0
