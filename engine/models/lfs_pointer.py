"""Git LFS pointers: the few lines of text that a clone without LFS has in place of a large file."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelError

_BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_lfs_pointer(path: Path) -> None:
    """Do nothing unless `path` is a pointer. What cannot be read is none.

    Raises
    ------
    ModelError
        It is one; the sentence says how to get the file that it stands for.
    """
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return
    if is_pointer:
        raise ModelError(
            f"{path} is a Git LFS pointer, not the file that it stands for: run `git lfs pull` "
            "where it was cloned, or fetch the file itself."
        )
