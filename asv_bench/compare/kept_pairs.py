"""Pairs on disk: a bisection that was interrupted goes on with what it had measured.

Each pair is appended to a file of JSON lines as soon as it is there. When the search runs again it
asks for the same pairs again and is given them from the file, until there are no more of that kind;
from then on it measures.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from asv_bench.errors import Refused
from asv_bench.process.samples import (
    Absence,
    CommitUnusable,
    GpuConditions,
    Pair,
    PairSource,
    Reading,
)

_Key = tuple[str, str, str]


class KeptFile:
    """The pairs of one bisection, in the order in which they were measured.

    Parameters
    ----------
    path
        A file of JSON lines, made where there is none.
    settings
        What the pairs are of; a file of anything else is refused.

    Raises
    ------
    Refused
        If the file belongs to another bisection, or is not one of ours.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.restored = 0
        self.finished = False
        self._lock = threading.Lock()
        self._waiting: dict[_Key, deque[dict[str, Pair]]] = defaultdict(deque)
        self._unusable: dict[str, CommitUnusable] = {}
        wanted = json.loads(json.dumps(settings))
        if path.exists():
            self._read(wanted)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": wanted})

    def _read(self, settings: Mapping[str, Any]) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole, newline, torn = text.rpartition("\n")
        if torn:
            # The line that was being written when the process was killed.
            with self.path.open("r+b") as file:
                file.truncate(len((whole + newline).encode()))
        try:
            entries = [json.loads(line) for line in whole.splitlines()]
            if not entries:
                # Killed before its first line was whole.
                self._append({"settings": settings})
                return
            if entries[0]["settings"] != settings:
                raise Refused(
                    f"{self.path} holds the pairs of another bisection; remove it, or start over "
                    f"with --fresh."
                )
            for entry in entries[1:]:
                self._take(entry)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(
                f"{self.path} is not the state of a bisection ({error}); remove it, or start over "
                f"with --fresh."
            ) from error

    def _take(self, entry: Mapping[str, Any]) -> None:
        if entry.get("finished"):
            self.finished = True
        elif "unusable" in entry:
            commit = entry["unusable"]
            error = CommitUnusable(commit, entry["reason"], is_lacking=entry["is_lacking"])
            self._unusable[commit] = error
        else:
            pairs = {name: pair_from_json(pair) for name, pair in entry["pairs"].items()}
            self._waiting[(entry["part"], entry["base"], entry["head"])].append(pairs)
            self.restored += 1

    def take(self, key: _Key) -> Mapping[str, Pair] | None:
        """The next pair of a kind that was kept; None where there are no more."""
        with self._lock:
            waiting = self._waiting.get(key)
            return waiting.popleft() if waiting else None

    def refuse(self, commit: str) -> None:
        """Raise CommitUnusable if the commit could not be measured before."""
        error = self._unusable.get(commit)
        if error is not None:
            raise CommitUnusable(commit, error.reason, is_lacking=error.is_lacking)

    def keep(self, key: _Key, pairs: Mapping[str, Pair]) -> None:
        """Append what was measured."""
        part, base, head = key
        content = {name: pair.to_json() for name, pair in pairs.items()}
        self._append({"part": part, "base": base, "head": head, "pairs": content})

    def keep_unusable(self, error: CommitUnusable) -> None:
        """Append that a commit cannot be measured."""
        self._append(
            {"unusable": error.commit, "reason": error.reason, "is_lacking": error.is_lacking}
        )

    def finish(self) -> None:
        """Note that the bisection has its answer: the next one starts over."""
        if not self.finished:
            self._append({"finished": True})

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":")) + "\n"
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


class KeptPairs:
    """A `PairSource` for one part of a search that gives kept pairs first and keeps new ones.

    Parameters
    ----------
    source
        Measures what was not kept.
    kept
        Where pairs are.
    part
        Of the search. Pairs of one part are never given to another.
    """

    def __init__(self, source: PairSource, kept: KeptFile, part: str) -> None:
        self._source = source
        self._kept = kept
        self._part = part

    @property
    def devices(self) -> Sequence[str]:
        """Those of the source."""
        return self._source.devices

    def prepare(self, commit: str) -> Mapping[str, Absence]:
        """Prepare a commit only when it is measured: kept pairs need none."""
        self._kept.refuse(commit)
        return {}

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """A kept pair, whatever its order and device, or a new one; see `PairSource.pair`."""
        key = (self._part, base, head)
        kept = self._kept.take(key)
        if kept is not None:
            return kept
        self._kept.refuse(base)
        self._kept.refuse(head)
        try:
            pairs = self._source.pair(
                base, head, head_first=head_first, benchmarks=benchmarks, device=device
            )
        except CommitUnusable as error:
            self._kept.keep_unusable(error)
            raise
        self._kept.keep(key, pairs)
        return pairs

    def stop(self) -> None:
        """Stop the source."""
        self._source.stop()


def pair_from_json(content: Mapping[str, Any]) -> Pair:
    """The pair that `Pair.to_json` wrote."""
    return Pair(
        base=_reading(content["base"]),
        head=_reading(content["head"]),
        head_first=content["head_first"],
        discarded=content["discarded"],
    )


def _reading(content: Mapping[str, Any]) -> Reading:
    gpu = content["gpu"]
    if gpu is not None:
        gpu = GpuConditions(**{**gpu, "clock_events": tuple(gpu["clock_events"])})
    return Reading(**{**content, "samples": tuple(content["samples"]), "gpu": gpu})
