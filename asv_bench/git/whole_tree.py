"""All files of a commit in a folder, as `git checkout` would write them, for any repository."""

from __future__ import annotations

import tempfile
from pathlib import Path

from asv_bench.git.repository import Repository

_SUBMODULE = "160000"


def write_whole_tree(commit: str, repository: Repository, folder: Path) -> list[str]:
    """Write the files of a commit to an empty folder; filters such as Git LFS's apply.

    An index of its own is used, so that the repository's is not touched. Returns a sentence for
    each submodule, whose files are not written.
    """
    with tempfile.TemporaryDirectory(prefix="kvtrail-") as scratch:
        variables = {
            "GIT_INDEX_FILE": str(Path(scratch) / "index"),
            "GIT_WORK_TREE": str(folder.resolve()),
        }
        repository.ask("read-tree", commit, variables=variables)
        repository.ask("checkout-index", "--all", variables=variables)
        staged = repository.names("ls-files", "--stage", "-z", variables=variables)
    paths = [line.partition("\t")[2] for line in staged if line.startswith(_SUBMODULE)]
    return [f"commit {commit[:8]}: the files of the submodule {path} are missing" for path in paths]
