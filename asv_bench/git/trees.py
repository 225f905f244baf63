"""Trees of files: the working tree as it stands, and a commit's measured packages laid out.

Both keep bytes and modes as they are. `git archive`, `git add` and `git checkout` would change them
as attributes, filters and settings say (export-ignore, ident, line ends).

asv files results by commit. A tree with uncommitted changes has no commit, so it gets one in
a repository beside the user's: the user's history and index are not touched.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from asv_bench.errors import Refused
from asv_bench.git.repository import GitError, NoRepository, Repository, quoted
from asv_bench.process.environment import COMMIT_MARKER, MEASURED_PACKAGES

RULER_PATHS = ("asv_bench", "asv.conf.json")
"""What else decides a figure: the benchmarks themselves."""
FILE, PROGRAM, LINK, FOLDER, SUBMODULE = "100644", "100755", "120000", "040000", "160000"
"""Modes, as git writes them."""
_KEPT_FOLDERS = 96
_PARTIAL = ".partial-"
_ODD = {"", ".", "..", ".git"}


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


def working_tree(repository: Path) -> WorkingTree:
    """Ask git what is checked out; untracked files count as changes unless git ignores them.

    A GitError tells of a repository that git does not read, such as another user's.
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
    """Commit files of the working tree at `root`; return the full hash.

    Files are kept byte for byte as they stand, whatever git would make of them. An unchanged tree
    gives the same hash again. `repository` is a bare one, made where there is none. `paths` are
    folders below `root`, of which files that git ignores are left out.

    Raises GitError if git fails, and Refused if a file cannot be read.
    """
    repository.parent.mkdir(parents=True, exist_ok=True)
    init = ("init", "--quiet", "--bare", "--template=", "--initial-branch=main")
    Repository(repository.parent).ask(*init, str(repository))
    scratch = Repository(repository)
    top = root.resolve()
    kinds = ("--cached", "--others", "--exclude-standard", "--", *paths)
    try:
        found = Repository(top).names("ls-files", "-z", *kinds)
    except NoRepository:
        # The snapshots' own repository reads the tree's .gitignore where no other is.
        found = scratch.names(f"--work-tree={top}", "-C", str(top), "ls-files", "-z", *kinds)
    listed = dict.fromkeys(name.rstrip("/") for name in found)
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


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, link, folder or submodule of a tree; the content of a link is where it leads."""

    path: str
    mode: str
    content: bytes = b""


def read_entry(place: Path, path: str) -> TreeEntry:
    """What lies at a place, as the entry of a path; a link is not followed.

    Raises Refused if nothing lies there, it cannot be read, or it is a device, a pipe or a socket.
    """
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return TreeEntry(path, LINK, os.fsencode(place.readlink()))
        if stat.S_ISDIR(mode):
            os.listdir(place)
            return TreeEntry(path, FOLDER)
        if stat.S_ISREG(mode):
            return TreeEntry(path, PROGRAM if mode & 0o100 else FILE, place.read_bytes())
    except OSError as error:
        raise Refused(f"{place} cannot be read: {error.strerror}.") from None
    raise Refused(f"{place} is neither a file nor a folder, so it cannot be laid out.")


def write_entries(folder: Path, entries: Iterable[TreeEntry]) -> list[str]:
    """Write entries below a folder; each takes the place of what lies there.

    As with git, a link or a file on the way of an entry gives way to a folder: nothing is written
    through it. Returns the paths of those that did.
    """
    gave_way: list[str] = []
    for entry in entries:
        *parents, name = entry.path.split("/")
        place = folder
        for parent in parents:
            place /= parent
            if os.path.lexists(place) and not _is_folder(place):
                place.unlink()
                gave_way.append(str(place.relative_to(folder)))
            place.mkdir(exist_ok=True)
        place /= name
        if _is_folder(place):
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        if entry.mode == LINK:
            os.symlink(entry.content, os.fsencode(place))
        elif entry.mode in (FOLDER, SUBMODULE):
            place.mkdir()
        else:
            # A file of our own making, whatever else comes to lie there: no link is followed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            handle = os.open(place, flags, 0o777 if entry.mode == PROGRAM else 0o666)
            with os.fdopen(handle, "wb") as file:
                file.write(entry.content)
    return gave_way


def packages_of(commit: str, repository: Repository) -> bytes:
    """Bytes that are equal for commits with the same measured packages; empty if there are none.

    Raises GitError if the repository lacks the commit.
    """
    listing = ("ls-tree", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES)
    return repository.ask(*listing)


def lay_out(commit: str, repository: Repository, folder: Path) -> Path:
    """The folder below `folder` with a commit's measured packages; it is made on first use.

    `commit` is a full hash. The folder is made as a whole or not at all, also if several processes
    make it at the same time. The least recently used folders are removed.

    Raises GitError if the repository lacks the commit or a part of it, or it has paths that lead
    elsewhere or exclude each other.
    """
    directory = folder / commit
    if not (directory / COMMIT_MARKER).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _forget_old(folder)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
        try:
            write_entries(partial, _entries(commit, repository))
            (partial / COMMIT_MARKER).write_text(commit + "\n")
            partial.chmod(0o755)
            if not (directory / COMMIT_MARKER).is_file():
                shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # another process has made it meanwhile
                partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    os.utime(directory)
    return directory


def _entries(commit: str, repository: Repository) -> list[TreeEntry]:
    """The files of a commit's measured packages; none if it has none of the packages."""
    listing = ("ls-tree", "-r", "-z", "--full-tree", commit, "--", *MEASURED_PACKAGES)
    listed = [entry.partition("\t") for entry in repository.names(*listing)]
    paths = [path for _, _, path in listed]
    if away := next((path for path in paths if _ODD & {*path.split("/")}), None):
        raise GitError(f"commit {commit[:8]} has a path that leads elsewhere: {away!r}.")
    taken = Counter(paths)
    taken.update({str(folder) for path in paths for folder in PurePosixPath(path).parents})
    if twice := next((path for path in paths if taken[path] > 1), None):
        raise GitError(f"commit {commit[:8]} has two things at the path {twice!r}.")
    heads = [head.split(" ") for head, _, _ in listed]
    blobs = [name for mode, _, name in heads if mode != SUBMODULE]
    contents = dict(zip(blobs, repository.blobs(blobs), strict=True))
    return [
        TreeEntry(path, mode, contents.get(name, b""))
        for path, (mode, _, name) in zip(paths, heads, strict=True)
    ]


def _forget_old(folder: Path) -> None:
    """Of all folders only those used last stay."""
    with suppress(FileNotFoundError):  # another process is removing them, too
        for old in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime)[:-_KEPT_FOLDERS]:
            # Renamed first, so that what an interruption leaves is never taken for a whole one.
            shutil.rmtree(old.rename(old.with_name(_PARTIAL + old.name)), ignore_errors=True)


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()
