"""Reading the files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError

_LFS_BEGINNING = b"version https://git-lfs.github.com/spec/"


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse a JSON file that must hold an object; a ModelError names the file otherwise."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        refuse_lfs_pointer(path)
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(parsed).__name__}.")
    return parsed


def refuse_lfs_pointer(path: Path) -> None:
    """Raise a ModelError if `path` is a Git LFS pointer, which a clone without LFS has in place of
    a large file; the sentence says how to get the file itself."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_BEGINNING)) == _LFS_BEGINNING
    except OSError:
        return
    if is_pointer:
        raise ModelError(
            f"{path} is a Git LFS pointer, not the file that it stands for: run `git lfs pull` "
            "where it was cloned, or fetch the file itself."
        )
