"""Pairs on disk: a command that was interrupted goes on with what it had measured.

Each pair is appended to a file of JSON lines as soon as it is there. A command that runs again asks
for the same pairs again and is given them from the file, until there are no more of that kind; from
then on it measures.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.errors import Refused
from asv_bench.measure.samples import (
    Absence,
    CommitUnusable,
    Pair,
    PairSource,
)
from asv_bench.output.line_file import LineFile
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.output.stored_json import text

FOLDER = WORKPLACE / ".asv" / "pairs"
RULER = Path(__file__).resolve().parents[1]
_KEPT_FILES = 64
_Key = tuple[str, str, str]


class KeptFile:
    """What one command measured, in the order in which it was measured."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restored = 0  # pairs that were read
        self.finished = False  # whether the command had its answer
        self._lock = threading.Lock()
        self._waiting: dict[_Key, deque[dict[str, Pair]]] = defaultdict(deque)
        self._absences: dict[str, dict[str, Absence]] = {}
        self._unusable: dict[str, CommitUnusable] = {}
        self._lines = LineFile(path, "an entry of kept pairs", self._take)

    @property
    def complaints(self) -> list[str]:
        """See `LineFile`."""
        return self._lines.complaints

    @classmethod
    def of_record(cls, record: Record, resume: bool | None) -> KeptFile:
        """The file of the settings, machine, threads and ruler of a record.

        `resume` True: go on with what was measured before, refused if that is nothing; False: start
        over; None: go on if it was interrupted, start over if it had its answer.
        """
        settings = {
            **record.settings,
            "command": record.command,
            # GPUs of one kind measure alike.
            "devices": None,
            **conditions(record),
        }
        path = file_of(settings, FOLDER, f"{record.command}-{{}}.jsonl")
        if resume and not path.exists():
            raise Refused(
                f"--resume was given, but there are no pairs of the same {record.command}: nothing "
                f"was measured, or the commits, the machine, the ruler or the options were others."
            )
        if resume is False:
            path.unlink(missing_ok=True)
        kept = cls(path)
        if kept.finished and resume is None:
            path.unlink()
            kept = cls(path)
        return kept

    def sentences(self) -> list[str]:
        """How many pairs are reused, and which lines were left out."""
        found = [f"going on with {self.restored} pairs of {self.path.name}"]
        return found[: self.restored] + self.complaints

    def _take(self, entry: Mapping[str, Any]) -> None:
        if entry.get("finished"):
            self.finished = True
        elif "unusable" in entry:
            commit = text(entry["unusable"])
            is_lacking = entry["is_lacking"] is True
            error = CommitUnusable(commit, text(entry["reason"]), is_lacking=is_lacking)
            self._unusable[commit] = error
        elif "prepared" in entry:
            absences = msgspec.convert(entry["absences"], dict[str, Absence])
            self._absences[text(entry["prepared"])] = absences
        else:
            pairs = msgspec.convert(entry["pairs"], dict[str, Pair])
            part, base, head = (text(entry[name]) for name in ("part", "base", "head"))
            self._waiting[part, base, head].append(pairs)
            self.restored += 1

    def next_pair(self, key: _Key) -> Mapping[str, Pair] | None:
        """The next pair of a kind that was kept; None where there are no more."""
        with self._lock:
            waiting = self._waiting.get(key)
            return waiting.popleft() if waiting else None

    def absences(self, commit: str) -> Mapping[str, Absence] | None:
        """The benchmarks that a commit lacks; None if it was not prepared before.

        Raises CommitUnusable if it could not be measured before.
        """
        error = self._unusable.get(commit)
        if error is not None:
            raise CommitUnusable(commit, error.reason, is_lacking=error.is_lacking)
        return self._absences.get(commit)

    def keep_pairs(self, key: _Key, pairs: Mapping[str, Pair]) -> None:
        """Append pairs."""
        part, base, head = key
        content = {name: pair.to_json() for name, pair in pairs.items()}
        self._lines.append({"part": part, "base": base, "head": head, "pairs": content})

    def keep_absences(self, commit: str, absences: Mapping[str, Absence]) -> None:
        """Append that a commit can be measured, but for some benchmarks."""
        content = {name: asdict(absence) for name, absence in absences.items()}
        self._lines.append({"prepared": commit, "absences": content})

    def keep_unusable(self, error: CommitUnusable) -> None:
        """Append that a commit cannot be measured."""
        self._lines.append(
            {"unusable": error.commit, "reason": error.reason, "is_lacking": error.is_lacking}
        )

    def finish(self) -> None:
        """Note that the command has its answer: the next one starts over."""
        if not self.finished:
            self._lines.append({"finished": True})


class KeptPairs:
    """A `PairSource` that gives kept pairs first, measures others and keeps them.

    Pairs of one `part`, such as a stage of a bisection, are never given to another.
    """

    def __init__(self, source: PairSource, kept: KeptFile, part: str) -> None:
        self._source = source
        self._kept = kept
        self._part = part
        self.measured = 0  # pairs that were not kept

    @property
    def devices(self) -> Sequence[str]:
        """Those of the source."""
        return self._source.devices

    @property
    def prepares_together(self) -> bool:
        """See `PairSource`."""
        return self._source.prepares_together

    def prepare(self, commit: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `PairSource.prepare`; a commit that was prepared before is when it is measured."""
        absences = self._kept.absences(commit)
        if absences is None:
            try:
                absences = self._source.prepare(commit, device)
            except CommitUnusable as error:
                self._kept.keep_unusable(error)
                raise
            self._kept.keep_absences(commit, absences)
        return absences

    def pair(
        self,
        base: str,
        head: str,
        *,
        head_first: bool,
        benchmarks: Collection[str] | None = None,
        device: str | None = None,
    ) -> Mapping[str, Pair]:
        """A kept pair, whatever its order and device, or a new one; see `PairSource.pair`.

        A kept one is as the source gave it: it may tell of more benchmarks than are asked for.
        """
        key = (self._part, base, head)
        while (kept := self._kept.next_pair(key)) is not None:
            wanted = kept if benchmarks is None else benchmarks
            if all(name in kept for name in wanted):
                return kept
        for commit in (base, head):
            self._kept.absences(commit)
        try:
            pairs = self._source.pair(
                base, head, head_first=head_first, benchmarks=benchmarks, device=device
            )
        except CommitUnusable as error:
            self._kept.keep_unusable(error)
            raise
        self._kept.keep_pairs(key, pairs)
        self.measured += 1
        return pairs

    def stop(self) -> None:
        """Stop the source."""
        self._source.stop()


def file_of(settings: Mapping[str, Any], folder: Path, name: str) -> Path:
    """The file of these settings, whose hash stands for the braces in `name`.

    Of the other files in the folder only the newest stay: nobody asks for the rest any more.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = folder / name.format(digest[:16])
    others = [file for file in folder.glob(f"*{path.suffix}") if file != path]
    for old in sorted(others, key=lambda file: file.stat().st_mtime)[:-_KEPT_FILES]:
        old.unlink(missing_ok=True)
    return path


def conditions(record: Record) -> dict[str, Any]:
    """What decides, beside the settings, whether figures can be taken together."""
    names = ("name", "cpu", "cores", "gpu", "driver", "python", "torch", "triton", "cuda")
    machine = {name: getattr(record.machine, name) for name in names}
    return {"machine": machine, "threads": record.threads, "ruler": ruler()}


@cache
def ruler() -> str:
    """A hash of the ruler's sources."""
    digest = hashlib.sha256()
    for path in sorted(RULER.rglob("*.py")):
        digest.update(str(path.relative_to(RULER)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
