"""The records of a run's processes on disk, with which an interrupted run can be resumed.

A run has its own folder, with a JSON file for each finished process and, until all have finished,
one that says what the run measures. Files are written in one piece.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.output.record import Record, write_json
from asv_bench.output.stored_json import UnreadableFile, read_stored

_UNFINISHED = "run.json"


def begun_run(record: Record) -> Path:
    """The folder of a new run, which its record describes."""
    folder = record.default_path().with_suffix("")
    write_json(folder / _UNFINISHED, _description(record))
    return folder


def resumed_run(record: Record) -> Path:
    """The folder of the newest interrupted run of the same measurement.

    Raises
    ------
    Refused
        If there is none, or the tree is not that of its commit.
    """
    if record.tree.dirty:
        raise Refused(
            "--resume was given, but the tree differs from its commit, so that what had been "
            "measured may be of another: commit the changes, or leave it out."
        )
    runs = record.default_path().parent
    kept = runs.glob(f"{record.command}-*/{_UNFINISHED}")
    complaints: list[str] = []
    for path in sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            if read_stored(path, "a run that was cut short", dict) == _description(record):
                record.notes += complaints
                return path.parent
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
    raise Refused(
        f"--resume was given, but no {record.command} of this commit, on this machine and with the "
        f"same options, was cut short: nothing was measured. Leave it out to begin one."
        + "".join(f" {complaint}" for complaint in complaints)
    )


def finish_run(folder: Path) -> None:
    """Mark a run as finished, so that it is not resumed."""
    (folder / _UNFINISHED).unlink()


def kept_or_measured(
    record: Path,
    measure: Callable[[], dict[str, Any]],
    check: Callable[[dict[str, Any]], object],
    notes: list[str],
) -> dict[str, Any]:
    """The record that a process of this run left in a file, or else what `measure` returns.

    `check` raises what Python raises if the record is not what it should be. Such a process runs
    again, and `notes` get a sentence.
    """
    if not record.exists():
        return measure()

    def checked(content: dict[str, Any]) -> dict[str, Any]:
        check(content)
        return content

    try:
        return read_stored(record, "the record of a process", checked)
    except UnreadableFile as error:
        notes.append(f"{error} The process runs again.")
        return measure()


def _description(record: Record) -> dict[str, Any]:
    """What a run measures, as it is read from a file."""
    description: dict[str, Any] = json.loads(
        json.dumps(
            {
                "settings": dict(record.settings),
                "commit": record.tree.label,
                "machine": record.machine.to_json() | {"state": None},
                "threads": record.threads,
            }
        )
    )
    return description
