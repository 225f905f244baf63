"""The working tree as it stands, as a commit that asv can measure.

asv files results by commit. A tree with uncommitted changes is nobody's commit, so it gets one of
its own, in a repository beside the user's: neither the user's history nor its index is touched,
and nothing can mistake the figures for those of HEAD.
"""

from __future__ import annotations

from pathlib import Path

from asv_bench.git.repository import GitError, Repository
from asv_bench.output.record import WorkingTree
from asv_bench.process.contract import MEASURED_PACKAGES

RULER_PATHS = ("asv_bench", "asv.conf.json")
"""What else decides a figure: the benchmarks themselves."""


def measured_changes(tree: WorkingTree) -> list[str]:
    """The changed paths of a working tree that bear on what is measured or how."""
    roots = (*MEASURED_PACKAGES, *RULER_PATHS)
    return [path for path in tree.changed if path.split("/", 1)[0] in roots]


def snapshot(root: Path, repository: Path) -> str:
    """Commit the measured packages of the working tree at `root` to a repository of their own.

    Parameters
    ----------
    root
        The project's directory.
    repository
        A bare repository, made where there is none.

    Returns
    -------
    str
        The commit's full hash. An unchanged tree gives the same hash again.

    Raises
    ------
    GitError
        If there is nothing to measure at `root`, or git fails.
    """
    present = [package for package in MEASURED_PACKAGES if (root / package).is_dir()]
    if not present:
        raise GitError(
            f"{root} holds none of {', '.join(MEASURED_PACKAGES)}; there is nothing to measure."
        )
    if not (repository / "objects").is_dir():
        repository.parent.mkdir(parents=True, exist_ok=True)
        Repository(repository.parent).ask(
            *("init", "--quiet", "--bare", "--template=", "--initial-branch=main"), str(repository)
        )
    scratch = Repository(repository)
    scratch.ask("read-tree", "--empty")
    scratch.ask(f"--work-tree={root}", "-C", str(root), "add", "--all", "--", *present)
    tree = scratch.line("write-tree")
    # Dated by its newest file, so that the hash says what was measured and not when.
    newest = max(path.stat().st_mtime for name in present for path in (root / name).rglob("*.py"))
    moment = f"{int(newest)} +0000"
    author = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", "kvtrail"), ("EMAIL", "kvtrail@localhost"), ("DATE", moment))
    }
    commit = scratch.line("commit-tree", tree, "-m", "working tree", variables=author)
    scratch.ask("update-ref", "refs/heads/main", commit)
    return commit
