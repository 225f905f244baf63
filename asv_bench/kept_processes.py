"""The records of a run's processes on disk: a run that was cut short goes on with what it has.

A run has a folder of its own, with a file that says what it measures and a JSON file for each
process that has ended. Files are written in one piece, so that one that is there is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.record import write_json

_DESCRIPTION = "run.json"


def begin_run(folder: Path, description: Mapping[str, Any]) -> None:
    """Say in the folder of a new run what it measures."""
    write_json(folder / _DESCRIPTION, description)


def interrupted_run(runs: Path, command: str, description: Mapping[str, Any]) -> Path:
    """The folder of the newest run of `command` that measures the same.

    Raises
    ------
    Refused
        If there is none.
    """
    wanted = json.loads(json.dumps(description))
    kept = sorted(runs.glob(f"{command}-*/{_DESCRIPTION}"), key=lambda path: path.stat().st_mtime)
    for path in reversed(kept):
        if json.loads(path.read_text(encoding="utf-8")) == wanted:
            return path.parent
    raise Refused(
        f"--resume was given, but no {command} of this commit, on this machine and with the same "
        f"options, was begun: nothing was measured. Leave it out to begin one."
    )


def kept_or_measured(record: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a process of this run left in `record`, or what `measure` returns where none has."""
    if not record.exists():
        return measure()
    kept: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return kept
