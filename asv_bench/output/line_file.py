"""A file of JSON lines that grows while something is measured, and outlives an interruption."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asv_bench.output.stored_json import UnreadableFile, parsed


class LineFile:
    """Entries on disk, each there as soon as it is appended; from several threads.

    `take` is called with each entry that is there; `what` says in sentences what an entry is.
    """

    def __init__(self, path: Path, what: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        self.path = path
        # A sentence for each line that is no entry and is left out, and one if writing failed.
        self.complaints: list[str] = []
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        whole, newline, torn = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        if torn:
            # The line that was being written when the process was killed.
            os.truncate(path, len(whole + newline))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                parsed(f"line {number} of {path}", what, line, take)
            except UnreadableFile as error:
                self.complaints.append(f"{error} It is left out.")

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry through to the disk."""
        line = json.dumps(entry, separators=(",", ":")) + "\n"
        try:
            with self._lock, self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # What is measured is still in memory, and has its record at the end.
            lost = f"{self.path} cannot be written: {error.strerror}. Nothing more is kept there."
            if lost not in self.complaints:
                self.complaints.append(lost)
