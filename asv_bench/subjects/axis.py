"""Along what a subject is compared: commits of its repository, or ordered labels.

Labels may be listed when a command begins: releases, tags, or what a line prints.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from asv_bench.errors import Refused
from asv_bench.git.repository import WORKING_TREE, Commit, GitError, NoRepository, Repository
from asv_bench.git.trees import snapshot
from asv_bench.measure.command_line import filled
from asv_bench.measure.delay import Delay
from asv_bench.measure.processes import last_words
from asv_bench.output.redaction import without_secrets
from asv_bench.process.environment import users_environment
from asv_bench.subjects import toml_values as toml
from asv_bench.subjects.subject_file import SUBJECT, AxisTable, LabelsTable, SubjectTable
from asv_bench.words import first_of

UNDER = " + "
"""Stands between the full hash of a commit and the label that it is under, in its name."""
_RELEASES = str(Path(__file__).with_name("pip_releases.py"))
_BEFORE = ".dev -dev dev .alpha -alpha alpha a .beta -beta beta b -pre .rc -rc rc"
"""What behind a version makes a tag one before it, the earliest first."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the things compared: the files of a commit in a repository, under a label.

    `delay` is planted in its lives; None: they are as they are.
    """

    commit: str
    repository: Repository
    label: str
    delay: Delay | None = None


class Commits:
    """Commits of a repository, and its working tree: of `paths`, which git does not ignore.

    `scratch` makes a folder for its snapshot.
    """

    labels: tuple[str, ...] = ()
    """What is compared in place of commits, in its order."""
    have_files = True
    """Whether each variant has files of its own."""

    def __init__(
        self, root: Path, scratch: Callable[[], Path], paths: Sequence[str] = (".",)
    ) -> None:
        self._repository = Repository(root)
        self._scratch = scratch
        self._paths = paths
        # Where commits lie that are not the repository's own.
        self._elsewhere: dict[str, Repository] = {}

    def add(self, commit: str, repository: Repository) -> None:
        """Know a commit, given by its full hash, that lies in another repository."""
        self._elsewhere[commit] = repository

    def resolve(self, name: str) -> Commit:
        """The variant that a user names: HEAD~3, a branch, a tag, a hash, "." for the working tree.

        Raises Refused where there is none.
        """
        if name == WORKING_TREE:
            return self._working_tree()
        if not name or name.startswith("-"):
            raise Refused(f"{name!r} names no commit; give a hash, a branch, a tag or HEAD~3.")
        try:
            found = self._repository.resolve(name)
        except GitError as error:
            raise Refused(f"{name!r} could not be looked up: {error}") from None
        if found is None:
            raise Refused(
                f"git knows no commit called {name!r} in {self._repository.path}; give a hash, a "
                f"branch, a tag, HEAD~3, or . for the working tree as it stands."
                f"{self._repository.shallow_hint()}"
            )
        return self._repository.commits([found])[found]

    def _working_tree(self) -> Commit:
        """The working tree as it stands, as a commit of its own."""
        place = self._scratch() / "worktree.git"
        commit = snapshot(self._repository.path, place, self._paths)
        self._elsewhere[commit] = Repository(place)
        return Commit(commit, "the working tree as it stands")

    def between(self, base: str, head: str) -> list[Commit]:
        """The variants after `base` up to and with `head`, oldest first.

        Of commits, first parents only: a merge counts as one, with all that it brought in. Raises
        Refused where `head` does not follow.
        """
        line = self._repository.first_parents(head, f"^{base}")
        found = list(self._repository.commits(line).values())
        if not found or found[0].parents[:1] != (base,):
            raise Refused(
                f"{base[:8]} is no ancestor of {head[:8]} on its line of first parents, so no "
                f"commit between them made the difference. Give a commit before it of `git log "
                f"--first-parent {head[:8]}`.{self._repository.shallow_hint()}"
            )
        return found

    def in_range(self, text: str) -> list[Commit]:
        """The variants of a range such as HEAD~5..HEAD, oldest first; of commits, first parents.

        It runs from the earlier, which is left out, to the later. Raises Refused where there are
        none, or the repository lacks a part of its history.
        """
        if text.startswith("-"):
            raise Refused(f"{text!r} is an option of git, not a range of commits.")
        if hint := self._repository.shallow_hint():
            raise Refused(f"the oldest commit here hides many.{hint}")
        try:
            commits = self._repository.first_parents(text)
        except GitError as error:
            raise Refused(
                f"git knows no commits called {text!r}; give a range such as HEAD~5..HEAD. Its own "
                f"words: {error}"
            ) from None
        if not commits:
            raise Refused(
                f"the range {text!r} holds no commits; a range runs from the older, which is left "
                f"out, to the newer."
            )
        return list(self._repository.commits(commits).values())

    def variant(self, name: str) -> Variant:
        """What a full hash, a label, or a hash under a label stands for, also with a delay."""
        undelayed, delay = Delay.planted(name)
        return replace(self._undelayed(undelayed), delay=delay)

    def _undelayed(self, name: str) -> Variant:
        commit, is_under, label = name.partition(UNDER)
        repository = self._elsewhere.get(commit, self._repository)
        return Variant(commit, repository, label if is_under else commit)

    def fixed(self) -> str:
        """Git's hash of the files that all variants have; "" where each has its own."""
        return ""

    def are_same(self, base: str, head: str, apart_from: Sequence[str]) -> bool:
        """Whether two variants are alike but for these paths, which are the working tree's."""
        return self._files(base, apart_from) == self._files(head, apart_from)

    def _files(self, commit: str, apart_from: Sequence[str]) -> list[str]:
        listing = ("ls-tree", "-r", "-z", "--full-tree", commit)
        apart = tuple(f"{path}/" for path in apart_from)
        found = self.variant(commit).repository.names(*listing)
        return [one for one in found if not (one.partition("\t")[2] + "/").startswith(apart)]


class Labels(Commits):
    """Labels in an order, such as versions of a dependency; all see the working tree's files.

    Where `are_tags`, each sees those of the tag of its name.
    """

    def __init__(
        self, labels: Sequence[str], root: Path, scratch: Callable[[], Path], *, are_tags: bool
    ) -> None:
        super().__init__(root, scratch)
        self.labels, self.have_files = tuple(labels), are_tags
        self._tagged: dict[str, str] = {}

    def resolve(self, name: str) -> Commit:
        if name not in self.labels:
            raise Refused(
                f"{name!r} is none of the labels {', '.join(self.labels)} of [axis]; give one of "
                f"them, or add it where it belongs in their order."
            )
        return Commit(name)

    def between(self, base: str, head: str) -> list[Commit]:
        first, last = self.labels.index(base), self.labels.index(head)
        if first >= last:
            raise Refused(f"{head} does not come after {base} in labels.")
        return [Commit(label) for label in self.labels[first + 1 : last + 1]]

    def in_range(self, text: str) -> list[Commit]:
        """The labels of A..B, or one label."""
        base, dots, head = text.partition("..")
        if text in self.labels or not dots:
            return [self.resolve(text)]
        return self.between(self.resolve(base).hash, self.resolve(head).hash)

    def _undelayed(self, name: str) -> Variant:
        if self.have_files:
            if name not in self._tagged:
                self._tagged[name] = super().resolve(f"refs/tags/{name}").hash
            return Variant(self._tagged[name], self._repository, name)
        return replace(self._files_of_all, label=name)

    def fixed(self) -> str:
        if self.have_files:
            return ""
        tree = self._files_of_all
        return tree.repository.line("rev-parse", f"{tree.commit}^{{tree}}")

    @cached_property
    def _files_of_all(self) -> Variant:
        """The working tree as it stood when it was first asked for."""
        return super()._undelayed(self._working_tree().hash)

    def are_same(self, base: str, head: str, apart_from: Sequence[str]) -> bool:
        return base == head


def listed(table: LabelsTable, repository: Path, subject: SubjectTable) -> tuple[str, ...]:
    """The labels that a table means now; Refused where they are no two, or cannot be listed."""
    if table.tags is not None:
        order = [word for one in _BEFORE.split() for word in ("-c", f"versionsort.suffix={one}")]
        listing = ("tag", "--no-column", "--sort=version:refname", "--format=%(refname:strip=2)")
        said = Repository(repository).line(*order, *listing, "--list", "--", table.tags)
    elif table.pip is not None:
        asked = [table.pip, table.since or "", table.until or "", "pre" * table.pre]
        said = _printed(shlex.join(["python", _RELEASES, *asked]), f"pip = {table.pip!r}", subject)
    else:
        said = _printed(table.run or "", f"run = {table.run!r}", subject)
    labels = tuple(line.strip() for line in said.splitlines() if line.strip())
    try:
        msgspec.convert({"kind": "labels", "labels": labels}, AxisTable)
    except msgspec.ValidationError as error:
        asked = [
            f"{key} = {value!r}" for key, value in msgspec.structs.asdict(table).items() if value
        ]
        given = f"{', '.join(asked)} in [axis] gives {first_of(labels, 3) or 'nothing'}"
        raise Refused(f"{given}; {toml.in_words(str(error))}.") from None
    return labels


def _printed(line: str, what: str, subject: SubjectTable) -> str:
    """What a line for the shell prints in the folder of the file, with the variables of a setup."""
    folder = subject.env[SUBJECT]
    own = {name: filled(text, {SUBJECT: folder}) for name, text in subject.env.items()}
    env, no_input = {**users_environment(), **own}, subprocess.DEVNULL
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, stdin=no_input, capture_output=True, check=False
    )
    if done.returncode:
        said = last_words(done.stderr.decode(errors="replace"))
        ended = f"{what} in [axis] ended with exit code {done.returncode}: {said}"
        raise Refused(without_secrets(ended))
    return done.stdout.decode(errors="replace")


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
