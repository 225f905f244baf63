"""Logs of what was measured, so that it is not measured again.

That of a command has its rounds: the same command goes on where it stopped. Each is appended to a
file of JSON lines as soon as it is there. A command that runs again asks for the same rounds again
and is given them from the file, until there are no more of that kind; from then on it measures.
That of a machine has its noise, which outlives commands: the log of one is begun anew with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from asv_bench.errors import Refused
from asv_bench.measure.samples import Absence, Reading, Round, RoundSource
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.output.stored_json import UnreadableFile, parsed

FOLDER = WORKPLACE / ".asv" / "log"
RULER = Path(__file__).resolve().parents[1]
_KEPT_FILES = 64


class KeptRound(msgspec.Struct, frozen=True, tag="round"):
    """A round, of which several may be alike; those of one part are never given to another.

    `failed` says why metrics are missing that should be there, and `facts` is what else lives told.
    """

    part: str
    cells: tuple[str, ...]
    order: tuple[int, ...]
    readings: tuple[dict[str, Reading], ...]
    failed: dict[str, str] = {}
    facts: dict[str, Any] = {}

    def __post_init__(self) -> None:
        places = list(range(len(self.cells)))
        if sorted(self.order) != places or len(self.readings) != len(places):
            raise ValueError(f"its order and readings are not of {len(places)} cells")
        # A count of 0 is a figure of a life, and has no ratio to that of another.
        values = [one.value for of_cell in self.readings for one in of_cell.values()]
        if len(places) > 1 and not all(values):
            raise ValueError("one of its figures is 0, which has no ratio")


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The command has its answer: the next one starts over."""


class Shown(msgspec.Struct, frozen=True, tag="noise"):
    """What a session showed of this machine's noise, see `compare.noise_pools`; by metric."""

    session: int
    differences: dict[str, list[Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]]]
    pair_s: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}  # that a pair took


Entry = KeptRound | Finished | Shown


class Log:
    """What was measured, in the order in which it was measured; `noun` is the unit of rounds.

    It is a file of JSON lines that outlives an interruption: entries are on disk as soon as they
    are kept, from several threads.
    """

    def __init__(self, path: Path, noun: str = "pairs") -> None:
        self.path = path
        self.restored = 0  # rounds that were read
        self.count = 0  # and those that were kept since
        self.finished = False  # whether the command had its answer
        self.shown: list[Shown] = []
        self._noun = noun
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, tuple[str, ...]], deque[KeptRound]] = defaultdict(deque)
        # A sentence for each line that is no entry and is left out, and one if writing failed.
        self.complaints: list[str] = []
        self._read()
        self.restored = self.count

    @classmethod
    def of_settings(
        cls, settings: Mapping[str, Any], verb: str, resume: bool | None = None, noun: str = "pairs"
    ) -> Self:
        """The file of a verb's settings, and of this ruler.

        `resume` True: go on with what was measured before, refused if that is nothing; False: start
        over; None: go on if it was interrupted, start over if it had its answer.
        """
        path = file_of({**settings, "ruler": ruler()}, FOLDER, f"{verb}-{{}}.jsonl")
        if resume and not path.exists():
            raise Refused(
                f"--resume was given, but there are no {noun} of the same {verb}: nothing was "
                f"measured, or the commits, the machine, the ruler or the options were others."
            )
        if resume is False or (resume is None and cls(path).finished):
            path.unlink(missing_ok=True)
        return cls(path, noun)

    def sentences(self) -> list[str]:
        """How many rounds are reused, and which lines were left out."""
        found = [
            f"going on with {self.restored} {self._noun} of an interrupted command, kept in "
            f"{self.path}"
        ]
        return found[: self.restored] + self.complaints

    def next(self, part: str, cells: Sequence[str]) -> KeptRound | None:
        """The next round of a kind that was kept; None where there are no more."""
        with self._lock:
            waiting = self._waiting.get((part, tuple(cells)))
            return waiting.popleft() if waiting else None

    def keep(self, entry: Entry) -> None:
        """Append what was learnt."""
        self.count += isinstance(entry, KeptRound)
        line = json.dumps(msgspec.to_builtins(entry), separators=(",", ":")) + "\n"
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

    def finish(self) -> None:
        """Note that the command has its answer."""
        if not self.finished:
            self.keep(Finished())

    def _read(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = self.path.read_bytes() if self.path.exists() else b""
        whole, newline, torn = kept.rpartition(b"\n")
        if torn:
            # The line that was being written when the process was killed.
            os.truncate(self.path, len(whole + newline))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                parsed(f"line {number} of {self.path}", "an entry of the log", line, self._take)
            except UnreadableFile as error:
                self.complaints.append(f"{error} It is left out.")

    def _take(self, content: Mapping[str, Any]) -> None:
        entry: Entry = msgspec.convert(content, Entry)
        if isinstance(entry, KeptRound):
            self._waiting[entry.part, entry.cells].append(entry)
            self.count += 1
        elif isinstance(entry, Shown):
            self.shown.append(entry)
        else:
            self.finished = True


@dataclass
class Logged:
    """A `RoundSource` for one part: it gives kept rounds first, measures others and keeps them."""

    source: RoundSource
    log: Log
    part: str
    measured: int = 0  # rounds that were not kept

    @property
    def devices(self) -> Sequence[str]:
        return self.source.devices

    def prepare(self, cell: str, device: str | None = None) -> Mapping[str, Absence]:
        """See `RoundSource`; that is not kept, as the record says what each cell ran with."""
        return self.source.prepare(cell, device)

    def round(
        self, cells: Sequence[str], order: Sequence[int], metrics: Collection[str], device: str = ""
    ) -> Round:
        """A kept round, whatever its order and device, or a new one; see `RoundSource`.

        A kept one is as the source gave it: it may tell of more metrics than are asked for.
        """
        while kept := self.log.next(self.part, cells):
            if all(name in readings for name in metrics for readings in kept.readings):
                return Round(kept.order, kept.readings)
        found = self.source.round(cells, order, metrics, device)
        readings = tuple(dict(of_cell) for of_cell in found.readings)
        self.measured += 1
        # A figure of 0 ends a comparison with a sentence, and the next command measures anew.
        with suppress(ValueError):
            self.log.keep(KeptRound(self.part, tuple(cells), found.order, readings))
        return found

    def stop(self) -> None:
        self.source.stop()


def file_of(settings: Mapping[str, Any], folder: Path, name: str) -> Path:
    """The file of these settings, whose hash stands for the braces in `name`.

    Of the other files in the folder only the newest stay: nobody asks for the rest any more.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = folder / name.format(digest[:16])
    others = [file for file in folder.glob("*") if file != path]
    for old in sorted(others, key=lambda file: file.stat().st_mtime)[:-_KEPT_FILES]:
        old.unlink(missing_ok=True)
    return path


def conditions(record: Record) -> dict[str, Any]:
    """What decides, beside the settings, whether figures can be taken together."""
    hardware = ("name", "cpu", "cores", "gpu", "driver", "image")
    names = (*hardware, "python", "torch", "triton", "cuda")
    machine = {name: getattr(record.machine, name) for name in names}
    return {"machine": machine, "threads": record.threads, "ruler": ruler()}


@cache
def ruler() -> str:
    """A hash of the ruler's sources."""
    digest = hashlib.sha256()
    for path in sorted([*RULER.rglob("*.py"), *RULER.rglob("*.toml")]):
        digest.update(str(path.relative_to(RULER)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
