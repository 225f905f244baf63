"""The working tree as it stands: how it differs from its commit, and as a commit of its own.

asv files results by commit. A tree with uncommitted changes has no commit, so it gets one in
a repository beside the user's: the user's history and index are not touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asv_bench.git.commit_tree import FOLDER, SUBMODULE, read_entry
from asv_bench.git.repository import GitError, NoRepository, Repository, quoted
from asv_bench.process.environment import MEASURED_PACKAGES

RULER_PATHS = ("asv_bench", "asv.conf.json")
"""What else decides a figure: the benchmarks themselves."""


@dataclass(frozen=True, slots=True)
class WorkingTree:
    """The commit checked out and the paths that differ from it; no commit outside a repository."""

    commit: str | None
    changed: tuple[str, ...] = ()

    @property
    def dirty(self) -> bool:
        """Whether the working tree differs from the commit."""
        return bool(self.changed)

    @property
    def label(self) -> str | None:
        """The commit's hash, marked where the tree differs from it."""
        return f"{self.commit}-dirty" if self.commit and self.dirty else self.commit

    @property
    def measured_changes(self) -> list[str]:
        """The changed paths that can change a figure: engine, kernels and the ruler."""
        roots = (*MEASURED_PACKAGES, *RULER_PATHS)
        return [path for path in self.changed if path.split("/", 1)[0] in roots]

    def apart_from(self, root: Path, *written: Path) -> WorkingTree:
        """The same but for files below `root` that a command has itself written before."""
        names = {
            path.resolve().relative_to(root).as_posix()
            for path in written
            if path.resolve().is_relative_to(root)
        }
        return replace(self, changed=tuple(path for path in self.changed if path not in names))


def working_tree(repository: Path) -> WorkingTree:
    """Ask git what is checked out; untracked files count as changes unless git ignores them.

    A GitError tells of a repository that git does not read, such as another user's.
    """
    git = Repository(repository)
    try:
        commit = git.resolve("HEAD")
    except NoRepository:
        return WorkingTree(None)
    if commit is None:
        return WorkingTree(None)
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as folder:
        # A copy of the index: the user's own is not refreshed, so that it may be in use meanwhile.
        index = Path(folder) / "index"
        own = repository / git.line("rev-parse", "--git-path", "index")
        if own.is_file():
            # With its time: git compares with it what may have changed since.
            shutil.copy2(own, index)
        copied = {"GIT_INDEX_FILE": str(index)}
        git.ask("update-index", "-q", "--really-refresh", variables=copied, also_fine=1)
        differing = ("diff-index", "-z", "--name-only", "--ignore-submodules=none", "HEAD", "--")
        untracked = ("ls-files", "-z", "--others", "--exclude-standard", "--directory")
        changed = [
            *git.names(*differing, variables=copied),
            *git.names(*untracked, "--no-empty-directory", variables=copied),
        ]
    return WorkingTree(commit, tuple(dict.fromkeys(changed)))


def snapshot(root: Path, repository: Path, paths: Sequence[str] = MEASURED_PACKAGES) -> str:
    """Commit files of the working tree at `root`; return the full hash.

    Files are kept byte for byte as they stand, whatever git would make of them. An unchanged tree
    gives the same hash again. `repository` is a bare one, made where there is none. `paths` are
    folders below `root`, of which files that git ignores are left out.

    Raises GitError if there is nothing to measure at `root`, or git fails, and Refused if a file
    cannot be read.
    """
    present = [path for path in paths if (root / path).is_dir()]
    if not present:
        raise GitError(f"{root} holds none of {', '.join(paths)}; there is nothing to measure.")
    if not (repository / "objects").is_dir():
        repository.parent.mkdir(parents=True, exist_ok=True)
        Repository(repository.parent).ask(
            *("init", "--quiet", "--bare", "--template=", "--initial-branch=main"), str(repository)
        )
    scratch = Repository(repository)
    top = root.resolve()
    listed = _listed(top, scratch, present)
    # What git tracked in a folder that a link has replaced is gone, whatever the link shows.
    ways = {way for way in map(os.path.dirname, listed) if (top / way).resolve() == top / way}
    names = [
        name for name in listed if os.path.dirname(name) in ways and os.path.lexists(top / name)
    ]
    # Dated by its newest file, so that the hash says what was measured and not when.
    newest = max((int((top / name).lstat().st_mtime) for name in names), default=0)
    head = (
        f"feature done\ncommit refs/heads/main\n"
        f"committer kvtrail <kvtrail@localhost> {newest} +0000\ndata 12\nworking tree\n"
    )
    script = b"".join([head.encode(), *(_entry(top, name) for name in names), b"done\n"])
    scratch.ask("fast-import", "--quiet", "--force", given=script)
    return scratch.line("rev-parse", "--verify", "refs/heads/main")


def _listed(root: Path, scratch: Repository, present: Sequence[str]) -> list[str]:
    """The files of these folders, but for those that git ignores."""
    kinds = ("--cached", "--others", "--exclude-standard")
    try:
        names = Repository(root).names("ls-files", "-z", *kinds, "--", *present)
    except NoRepository:
        # The snapshots' own repository reads the tree's .gitignore where no other is.
        with tempfile.TemporaryDirectory(prefix="kvtrail-") as folder:
            names = scratch.names(
                *(f"--work-tree={root}", "-C", str(root), "ls-files", "-z", *kinds, "--", *present),
                variables={"GIT_INDEX_FILE": str(Path(folder) / "index")},
            )
    return list(dict.fromkeys(name.rstrip("/") for name in names))


def _entry(root: Path, name: str) -> bytes:
    """A file, a link or a submodule of the working tree, as fast-import takes it."""
    entry = read_entry(root / name, name)
    path = os.fsencode(quoted(name))
    if entry.mode == FOLDER:
        try:
            head = Repository(root / name).line("rev-parse", "--verify", "HEAD")
        except NoRepository:  # a submodule that is not checked out is the one of the index
            head = Repository(root).line("rev-parse", "--verify", f":0:{name}")
        return b"M %s %s %s\n" % (SUBMODULE.encode(), head.encode(), path)
    mode, content = entry.mode.encode(), entry.content
    return b"M %s inline %s\ndata %d\n%s\n" % (mode, path, len(content), content)
