"""Trees of files: the working tree as it stands, a commit's packages laid out, parts of a commit.

The user's repository is only read. The working tree, and a part of a commit, gets a commit of its
own in a repository beside it. Packages and the working tree keep their bytes and modes: attributes,
filters and settings, by which git would change them (ident, line ends), do not count there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asv_bench.git.repository import PERSON, GitError, NoRepository, Repository
from asv_bench.process.environment import COMMIT_MARKER, MEASURED_PACKAGES

_PROSE = {".md", ".rst", ".adoc", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
_PROSE_NAMES = {"authors", "changelog", "changes", "history", "license", "news", "notice", "readme"}
_KEPT_FOLDERS = 96
_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class WorkingTree:
    """The commit checked out and the paths that differ from it; no commit outside a repository."""

    commit: str | None
    changed: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """The commit's hash, marked where the tree differs from it."""
        return f"{self.commit}-dirty" if self.commit and self.changed else self.commit

    @property
    def measured_changes(self) -> list[str]:
        """The changed paths that can change a figure: engine, kernels and the ruler."""
        roots = (*MEASURED_PACKAGES, "asv_bench", "asv.conf.json")
        return [path for path in self.changed if path.split("/", 1)[0] in roots]


def working_tree(repository: Path) -> WorkingTree:
    """Ask git what is checked out; untracked files count as changes unless git ignores them.

    Raises GitError where git does not read the repository, such as another user's.
    """
    git, commit = Repository(repository), None
    with suppress(NoRepository):
        commit = git.resolve("HEAD")
    if commit is None:
        return WorkingTree(None)
    what = ("--untracked-files=normal", "--ignore-submodules=none", "--no-renames")
    changed = git.names("status", "--porcelain", "-z", *what)
    return WorkingTree(commit, tuple(entry[3:] for entry in changed))


def snapshot(root: Path, repository: Path, paths: Sequence[str] = MEASURED_PACKAGES) -> str:
    """Commit files of the working tree at `root`, byte for byte; return the full hash.

    An unchanged tree gives the same hash again. `repository` is a bare one, made where there is
    none. `paths` are folders below `root`, of which files that git ignores are left out.

    Raises GitError if there is nothing to measure at `root`, or git cannot read it.
    """
    if not any((root / path).is_dir() for path in paths):
        raise GitError(f"{root} holds none of {', '.join(paths)}; there is nothing to measure.")
    exact, top = _exact(repository.resolve()), root.resolve()
    kinds = ("--cached", "--others", "--exclude-standard", "--", *paths)
    try:
        found = Repository(top).names("ls-files", "-z", *kinds)
        staged = Repository(top).names("ls-files", "-z", "--stage", "--", *paths)
    except NoRepository:
        # The snapshots' own repository reads the tree's .gitignore where no other is.
        found = exact.names(f"--work-tree={top}", "-C", str(top), "ls-files", "-z", *kinds)
        staged = []
    listed = dict.fromkeys(name.rstrip("/") for name in found)
    # What git tracked in a folder that a link has replaced is gone, whatever the link shows.
    ways = {way for way in map(os.path.dirname, listed) if (top / way).resolve() == top / way}
    names = [
        name for name in listed if os.path.dirname(name) in ways and os.path.lexists(top / name)
    ]
    # A submodule that is not checked out is the one of the index.
    links = [one for one in staged if one.startswith("160000") and one.split("\t")[1] in names]
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as folder:
        places = {"GIT_INDEX_FILE": f"{folder}/index", "GIT_WORK_TREE": str(top)}
        for how, ones in (("--index-info", links), ("--stdin", names)):
            given = os.fsencode("".join(f"{one}\0" for one in ones))
            update = ("-C", str(top), "update-index", "--add", "-z", how)
            exact.ask(*update, given=given, variables=places)
        tree = exact.line("write-tree", variables=places)
    # Dated by its newest file, so that the hash says what was measured and not when.
    newest = max((int((top / name).lstat().st_mtime) for name in names), default=0)
    dated = PERSON | dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"@{newest} +0000")
    return exact.line("commit-tree", "-m", "working tree", tree, variables=dated)


def lay_out(commit: str, repository: Repository, folder: Path) -> Path:
    """The folder below `folder` with a commit's measured packages; it is made on first use.

    `commit` is a full hash. The folder is made as a whole or not at all, also if several processes
    make it at the same time. Raises GitError if the repository lacks the commit or a part of it, or
    git refuses its paths.
    """
    directory = folder / commit
    if not (directory / COMMIT_MARKER).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _forget_old(folder)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as scratch:
            made = Path(scratch).resolve() / "made"
            made.mkdir()
            exact = _exact(made.with_name("exact.git"))
            places = {
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": repository.objects(),
                "GIT_INDEX_FILE": str(made.with_name("index")),
                "GIT_WORK_TREE": str(made),
            }
            exact.ask("read-tree", commit, variables=places)
            names = exact.ask("ls-files", "-z", "--", *MEASURED_PACKAGES, variables=places)
            exact.ask("checkout-index", "-z", "--stdin", given=names, variables=places)
            (made / COMMIT_MARKER).write_text(commit + "\n")
            if not (directory / COMMIT_MARKER).is_file():
                shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # another process has made it meanwhile
                made.rename(directory)
    os.utime(directory)
    return directory


def _exact(folder: Path) -> Repository:
    """A bare repository, made where there is none, which takes and gives files byte for byte."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    Repository(folder.parent).ask("init", "--quiet", "--bare", "--template=", str(folder))
    (folder / "info").mkdir(exist_ok=True)
    # These go before the attributes that lie among the files.
    (folder / "info" / "attributes").write_text("* -text -ident -filter !working-tree-encoding\n")
    return Repository(folder)


def _forget_old(folder: Path) -> None:
    """Of all folders only those used last stay."""
    with suppress(FileNotFoundError):  # another process is removing them, too
        for old in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime)[:-_KEPT_FOLDERS]:
            # Renamed first, so that what an interruption leaves is never taken for a whole one.
            shutil.rmtree(old.rename(old.with_name(_PARTIAL + old.name)), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class FileChange:
    """One change of a commit: of a file, or of its name, which is another file's from then on."""

    label: str
    index_info: str  # what `git update-index -z --index-info` makes it of
    is_prose: bool  # whether programs hardly ever read it: documents, pictures, change logs


def changes_between(base: str, head: str, repository: Repository) -> list[FileChange]:
    """The changes that make the files of a commit those of another, in the order of their paths."""
    what = ("-r", "-z", "--raw", "--no-abbrev", "--find-renames", "--no-ext-diff")
    fields = iter(repository.names("diff-tree", *what, "--ignore-submodules=none", base, head))
    changes: list[FileChange] = []
    for head_of_line in fields:
        _, mode, gone, name, kind = head_of_line.removeprefix(":").split(" ")
        path = next(fields)
        change = FileChange(path, f"{mode} {name}\t{path}\0", _is_prose(path))
        if kind[0] == "R":
            new = next(fields)
            moved = f"000000 {'0' * len(gone)}\t{path}\0{mode} {name}\t{new}\0"
            change = FileChange(f"{path} → {new}", moved, _is_prose(path) and _is_prose(new))
        changes.append(change)
    return changes


class PartCommits:
    """Commits of a base, given by its full hash, with some of the changes that lead to another.

    `repository`, below `folder`, holds the commits that were made, and all of the other's.
    """

    def __init__(self, base: str, repository: Repository, folder: Path) -> None:
        self._base = base
        self._index = {"GIT_INDEX_FILE": str(folder / "index")}
        kind = repository.line("rev-parse", "--show-object-format")
        # Where git sees that an object is there already, it dates it anew: it must not see the
        # user's where it writes. So what is written and what is read are two repositories.
        self._written = Repository(folder / "written.git")
        self.repository = Repository(folder / "parts.git")
        init = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
        for made in (self._written, self.repository):
            repository.ask(*init, str(made.path))
        borrowed = self.repository.path / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        borrowed.write_text(f"{self._written.objects()}\n{repository.objects()}\n")

    def commit(self, changes: Sequence[FileChange]) -> str:
        """The full hash of the base with these changes made; GitError if git cannot make it."""
        ask = self.repository.ask
        ask("read-tree", self._base, variables=self._index)
        given = os.fsencode("".join(change.index_info for change in changes))
        ask("update-index", "-z", "--index-info", given=given, variables=self._index)
        tree = self._written.line("write-tree", "--missing-ok", variables=self._index)
        return self._written.line("commit-tree", "-m", "a part of a commit", tree, variables=PERSON)


def _is_prose(path: str) -> bool:
    *folders, name = path.lower().split("/")
    stem, dot, suffix = name.partition(".")
    is_document = stem in _PROSE_NAMES and dot + suffix in ("", ".txt")
    return is_document or Path(name).suffix in _PROSE or folders[:1] in (["doc"], ["docs"])
