"""Asking git: plumbing commands only, bytes in and bytes out, and of this repository alone.

Names of files, branches and tags are any bytes: they are decoded and encoded as the operating
system does, and come back to git as they were. Texts of commits are for reading only.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asv_bench.errors import MeasurementFailed

_KEPT_VARIABLES = tuple(f"GIT_{what}" for what in ("CONFIG", "EXEC", "LFS", "SSH", "SSL", "TEST"))
"""What git's variables begin with that are the user's settings, such as trust in a directory. All
others a hook or a command of git may have set, to its own repository, index or meaning of paths."""
_SETTINGS = (
    # The user's hooks and watchers are not for us to run.
    *("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"),
    *("-c", "core.symlinks=true"),
    # Snapshots of the working tree are in a bare repository below the checkout.
    *("-c", "safe.bareRepository=all"),
)
PERSON = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "kvtrail"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "kvtrail@localhost"),
    # What has the same files has the same hash whenever it is made.
    **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2000-01-01T00:00:00+0000"),
}
"""Variables for a commit that is not the user's."""
WORKING_TREE = "."
"""Names the working tree as it stands where a commit is asked for."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FIELDS = "--format=%x00%H%x00%an%x00%P%x00%s"
_FULL_HASH = re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")


class GitError(MeasurementFailed):
    """git could not do what was asked of it; the message has git's own words."""


class NoRepository(GitError):
    """There is no repository at the place, or no git to ask."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by its full hash, with what may be read of it: the first paragraph of its message,
    and its author's name. `parents` are full hashes. All is empty where no repository holds it."""

    hash: str
    subject: str = ""
    author: str = ""
    parents: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The first eight digits of the hash; a label, which is no hash, whole."""
        return short(self.hash)

    def to_json(self) -> dict[str, str]:
        """The commit as JSON-ready values."""
        return {"hash": self.hash, "author": self.author, "subject": self.subject}


def kind_of(name: str) -> str:
    """The word for what a name stands for: a full hash is of a commit, all else is a label."""
    return "commit" if _FULL_HASH.fullmatch(name) else "label"


def short(commit: str) -> str:
    """The first eight digits of a full hash; a label, which is no hash, whole."""
    return _FULL_HASH.sub(lambda found: found[0][:8], commit)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository: a clone, a linked worktree, or a bare directory, not one around `path`."""

    path: Path

    def ask(
        self,
        *arguments: str,
        given: bytes = b"",
        variables: Mapping[str, str] | None = None,
        also_fine: int = 0,
    ) -> bytes:
        """What a command of git prints that reads `given`.

        `variables` are set beside those of `git_environment`. Raises GitError with git's own words
        where the exit code is neither 0 nor `also_fine`.
        """
        is_bare = not (self.path / ".git").exists() and (self.path / "objects").is_dir()
        place = [f"--git-dir={self.path}"] if is_bare else ["-C", str(self.path)]
        # git looks for a repository in the folders around, but for those named here.
        around = {"GIT_CEILING_DIRECTORIES": str(self.path.resolve().parent)}
        try:
            done = subprocess.run(
                ["git", *_SETTINGS, *place, *arguments],
                env={**git_environment(), **around, **(variables or {})},
                input=given,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            raise NoRepository("git is not installed; the ruler asks it for commits.") from None
        if done.returncode in (0, also_fine):
            return done.stdout
        said = done.stderr.decode(errors="replace").strip() or "git gave no reason"
        kind = NoRepository if "not a git repository" in said else GitError
        raise kind(f"{self.path} could not be read: {said}")

    def line(self, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """The one line that a command prints, without its end."""
        return os.fsdecode(self.ask(*arguments, variables=variables)).rstrip("\n")

    def names(self, *arguments: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """The names that a command prints with a NUL after each."""
        return os.fsdecode(self.ask(*arguments, variables=variables)).split("\0")[:-1]

    def resolve(self, name: str) -> str | None:
        """The full hash of the commit that HEAD~3, a tag or another name means; None without one.

        Raises GitError if git cannot look, or says more about the name than that.
        """
        try:
            return self.line("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        except GitError as error:
            said = str(error)
            if "Needed a single revision" in said and "is ambiguous" not in said:
                return None
            raise

    def objects(self) -> str:
        """Its folder of objects in quotation marks, as git takes those that it is to borrow."""
        folder = (self.path / self.line("rev-parse", "--git-path", "objects")).resolve()
        escaped = str(folder).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return f'"{escaped}"'

    def shallow_hint(self) -> str:
        """A sentence to add where a part of the history is missing, and a commit may be in it."""
        if self.line("rev-parse", "--is-shallow-repository") != "true":
            return ""
        return (
            " This repository is shallow: a part of its history is missing. Fetch it with `git "
            "fetch --unshallow`."
        )

    def first_parents(self, *revisions: str) -> list[str]:
        """Full hashes of a range of commits, parents before children, first parents only."""
        options = ("--first-parent", "--reverse", "--end-of-options")
        return self.ask("rev-list", *options, *revisions, "--").decode().split()

    def commits(self, hashes: Iterable[str]) -> dict[str, Commit]:
        """The commits of full hashes, in their order; what the repository lacks is left out."""
        wanted = [commit for commit in dict.fromkeys(hashes) if _FULL_HASH.fullmatch(commit)]
        given = "".join(f"{commit}\n" for commit in wanted).encode()
        options = ("--no-walk=unsorted", "--ignore-missing", "--encoding=UTF-8", _FIELDS)
        # A line with the hash precedes the fields; neither holds a NUL, nor a subject a newline.
        _, *fields = self.ask("rev-list", *options, "--stdin", given=given).split(b"\0")
        found: dict[str, Commit] = {}
        for name, author, parents, rest in zip(*[iter(fields)] * 4, strict=True):
            subject, _, _ = rest.partition(b"\n")
            family = tuple(parents.decode().split())
            commit = Commit(name.decode(), _readable(subject), _readable(author), family)
            found[commit.hash] = commit
        return {name: found[name] for name in wanted if name in found}

    def write_files(self, commit: str, folder: Path) -> list[str]:
        """Write all files of a commit to an empty folder as a checkout does, filters included.

        Returns a clause for each submodule, whose files are not written.
        """
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
            places = {"GIT_INDEX_FILE": f"{scratch}/index", "GIT_WORK_TREE": str(folder.resolve())}
            self.ask("read-tree", commit, variables=places)
            self.ask("checkout-index", "--all", variables=places)
            staged = self.names("ls-files", "--stage", "-z", variables=places)
        paths = [line.partition("\t")[2] for line in staged if line.startswith("160000")]
        return [f"the files of the submodule {path} are missing" for path in paths]


def commits_on_line(
    dates: Mapping[str, int], repository: Repository, tip: str = "HEAD"
) -> tuple[list[Commit], int]:
    """The commits on the line of first parents that ends at `tip`; how many are not on it.

    Only there is a commit's neighbour its ancestor. Dates alone cannot order commits, as those of
    one rebase share theirs. They do where there is no repository, or it has no such tip; `dates`
    tells by full hash when each was committed.
    """
    with suppress(NoRepository):
        if repository.resolve(tip) is not None:
            line = repository.first_parents(tip)
            on_line = repository.commits(commit for commit in line if commit in dates)
            return list(on_line.values()), len(dates) - len(on_line)
    return [Commit(name) for name in sorted(dates, key=lambda name: (dates[name], name))], 0


def git_environment() -> dict[str, str]:
    """Variables for a process of git.

    A hook or a command of git that calls the ruler must not redirect it to another repository. git
    speaks English, asks nothing, writes nothing that it need not and takes objects for themselves,
    not for what `git replace` puts there. The user's GIT_CONFIG_* stay.
    """
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("GIT_") or key.startswith(_KEPT_VARIABLES)
    }
    variables |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    return variables | {"GIT_NO_REPLACE_OBJECTS": "1"}


def _readable(text: bytes) -> str:
    """A text without what a terminal would obey, and pages may not hold."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.decode(errors="replace")).strip()
