"""Files for results: looked at before anything is measured, and written in one piece."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from secrets import token_hex
from typing import Any

from asv_bench.errors import MeasurementFailed, Refused

STANDARD_OUTPUT = Path("-")
"""The name that stands for standard output."""
_TEXT: Any = {"encoding": "utf-8", "errors": "backslashreplace"}


def require_writable(*paths: Path | None) -> None:
    """See before measuring that files can be written; Refused if not.

    Nothing is written, not even a folder. Paths that are None are skipped.
    """
    for path in paths:
        if path is None or path == STANDARD_OUTPUT:
            continue
        try:
            target = path.resolve()
            if target.is_dir():
                raise IsADirectoryError("it is a folder")
            # Files below other names are made in folders that do not exist yet.
            nearest = next(one for one in (target, *target.parents) if one.exists())
            if nearest != target and not nearest.is_dir():
                raise NotADirectoryError(f"{nearest} is a file, not a folder")
            if not os.access(nearest, os.W_OK):
                raise PermissionError("it may not be written to")
        except (OSError, RuntimeError) as error:  # a RuntimeError is a loop of symbolic links
            raise Refused(
                f"{path} cannot be written: {_reason(error)}. Nothing was measured; make it "
                f"writable, or name another file."
            ) from None


def write_text(path: Path, text: str) -> Path:
    """Write a file in one piece: a reader sees the old text or the new, never half of it.

    What is no regular file, such as a pipe or a device, is written to as it stands. Missing folders
    are made, and "-" is standard output. Raises MeasurementFailed if it could not be written.
    """
    try:
        if path == STANDARD_OUTPUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        elif path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, **_TEXT)  # a pipe, or a device
        else:
            # Through a symbolic link, as any other program writes.
            _replace(path.resolve(), text)
    except (OSError, RuntimeError) as error:
        raise MeasurementFailed(f"{path} could not be written: {_reason(error)}.") from None
    return path


def _replace(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.{token_hex(4)}"
    try:
        beside.write_text(text, **_TEXT)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _reason(error: OSError | RuntimeError) -> str:
    return getattr(error, "strerror", None) or str(error)
