"""Along what a subject is compared: commits of its repository, or ordered labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asv_bench.errors import Refused
from asv_bench.git.commits import (
    WORKING_TREE,
    commits_between,
    commits_in_range,
    resolve_revision,
)
from asv_bench.git.repository import Commit, NoRepository, Repository
from asv_bench.git.working_tree import snapshot
from asv_bench.measure.delay import Delay


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the things compared: the files of a commit in a repository, under a label.

    `delay` is planted in its lives; None: they are as they are.
    """

    commit: str
    repository: Repository
    label: str
    delay: Delay | None = None


class Axis(Protocol):
    """An order of variants, each named by the full hash of a commit, or by a label."""

    def resolve(self, name: str) -> Commit:
        """The variant that a user names; Refused if there is none."""
        ...

    def between(self, base: str, head: str) -> list[Commit]:
        """The variants after `base` up to and with `head`; Refused if `head` does not follow."""
        ...

    def in_range(self, text: str) -> list[Commit]:
        """The variants of a range such as HEAD~5..HEAD, in their order; Refused if there are none.

        It runs from the earlier, which is left out, to the later.
        """
        ...

    def variant(self, name: str) -> Variant:
        """The variant of a full hash, or of a label."""
        ...

    def fixed(self) -> str:
        """Git's hash of the files that all variants have; "" where each has its own."""
        ...

    def are_same(self, base: str, head: str, apart_from: Sequence[str]) -> bool:
        """Whether two variants are alike but for these paths, which are the working tree's."""
        ...


class Commits:
    """Commits of a repository, and its working tree: of `paths`, which git does not ignore.

    `scratch` makes a folder for its snapshot.
    """

    def __init__(
        self, root: Path, scratch: Callable[[], Path], paths: Sequence[str] = (".",)
    ) -> None:
        self._root = root
        self._scratch = scratch
        self._paths = paths
        # Where commits lie that are not the repository's own.
        self._elsewhere: dict[str, Repository] = {}

    def add(self, commit: str, repository: Repository) -> None:
        """Know a commit, given by its full hash, that lies in another repository."""
        self._elsewhere[commit] = repository

    def resolve(self, name: str) -> Commit:
        """See `Axis`: HEAD~3, a branch, a tag, a hash, or "." for the working tree."""
        if name != WORKING_TREE:
            return resolve_revision(name, self._root)
        return self.working_tree()

    def working_tree(self) -> Commit:
        """The working tree as it stands, as a commit of its own."""
        commit = snapshot(self._root, self._snapshots, self._paths)
        self.add(commit, Repository(self._snapshots))
        return Commit(commit, "the working tree as it stands")

    @property
    def _snapshots(self) -> Path:
        return self._scratch() / "worktree.git"

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Axis`: on one line of first parents."""
        return commits_between(base, head, Repository(self._root))

    def in_range(self, text: str) -> list[Commit]:
        """See `Axis`: as git understands it, first parents only."""
        return commits_in_range(text, Repository(self._root))

    def variant(self, name: str) -> Variant:
        """See `Axis`."""
        return Variant(name, self._elsewhere.get(name) or Repository(self._root), name)

    def fixed(self) -> str:
        """See `Axis`."""
        return ""

    def are_same(self, base: str, head: str, apart_from: Sequence[str]) -> bool:
        """See `Axis`."""
        return self._files(base, apart_from) == self._files(head, apart_from)

    def _files(self, commit: str, apart_from: Sequence[str]) -> list[str]:
        repository = self.variant(commit).repository
        listed = repository.names("ls-tree", "-r", "-z", "--full-tree", commit)
        paths = [(entry.partition("\t")[2], entry) for entry in listed]
        return [
            entry
            for path, entry in paths
            if not any(path == one or path.startswith(f"{one}/") for one in apart_from)
        ]


class Labels:
    """Labels in an order, such as versions of a dependency; all see the working tree's files."""

    def __init__(self, labels: Sequence[str], root: Path, scratch: Callable[[], Path]) -> None:
        self._labels = tuple(labels)
        self._commits = Commits(root, scratch)
        self._tree: Variant | None = None

    def resolve(self, name: str) -> Commit:
        """See `Axis`."""
        if name not in self._labels:
            raise Refused(
                f"{name!r} is none of the labels {', '.join(self._labels)} of [axis]; give one of "
                f"them, or add it where it belongs in their order."
            )
        return Commit(name)

    def between(self, base: str, head: str) -> list[Commit]:
        """See `Axis`: in the order of the file."""
        first, last = self._labels.index(base), self._labels.index(head)
        if first >= last:
            raise Refused(f"{head} does not come after {base} in labels.")
        return [Commit(label) for label in self._labels[first + 1 : last + 1]]

    def in_range(self, text: str) -> list[Commit]:
        """See `Axis`: A..B of two labels, or one label."""
        base, dots, head = text.partition("..")
        if text in self._labels or not dots:
            return [self.resolve(text)]
        return self.between(self.resolve(base).hash, self.resolve(head).hash)

    def variant(self, name: str) -> Variant:
        """See `Axis`."""
        tree = self._working_tree()
        return Variant(tree.commit, tree.repository, name)

    def fixed(self) -> str:
        """See `Axis`."""
        tree = self._working_tree()
        return tree.repository.line("rev-parse", f"{tree.commit}^{{tree}}")

    def _working_tree(self) -> Variant:
        """The working tree as it stood when it was first asked for."""
        if self._tree is None:
            self._tree = self._commits.variant(self._commits.working_tree().hash)
        return self._tree

    def are_same(self, base: str, head: str, apart_from: Sequence[str]) -> bool:
        """See `Axis`."""
        return base == head


def require_repository(root: Path) -> None:
    """Raise Refused where a folder is no git repository."""
    try:
        Repository(root).line("rev-parse", "--git-dir")
    except NoRepository as error:
        raise Refused(
            f"{root} is no git repository, and commits of it are to be measured: {error}"
        ) from None


def repository_around(folder: Path) -> Path | None:
    """The folder of the repository that a folder lies in; None where there is none."""
    inside = (one for one in (folder, *folder.parents) if os.path.lexists(one / ".git"))
    return next(inside, None)


def place_of(folder: Path) -> tuple[Path, str]:
    """The repository that a folder lies in, and the folder's place in it; "": it is the top.

    A folder stands for itself where no repository is around, or the one around ignores it. Raises
    Refused where it is no folder.
    """
    if not folder.is_dir():
        raise Refused(f"{folder} is no folder; [subject] repository names the one to measure.")
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    top = None if is_bare else repository_around(folder)
    if top is None or top == folder:
        return folder, ""
    place = folder.relative_to(top).as_posix()
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", place)
    try:
        is_inside = Repository(top).ask(*listing, variables={"GIT_LITERAL_PATHSPECS": "1"})
    except NoRepository:
        return folder, ""
    return (top, place) if is_inside else (folder, "")
