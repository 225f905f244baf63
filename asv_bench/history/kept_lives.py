"""Lives on disk: a session of rounds that was interrupted goes on with what it had measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from asv_bench.compare.kept_pairs import file_of, ruler
from asv_bench.measure.samples import Reading
from asv_bench.output.line_file import LineFile
from asv_bench.output.record import WORKPLACE
from asv_bench.output.stored_json import text

FOLDER = WORKPLACE / ".asv" / "lives"


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be measured: on which kind of machine, of which commit or label, in which round.

    Of peers it is a life of each engine of the contest that `commit` names.
    """

    kind: str
    commit: str
    round: int


@dataclass(frozen=True, slots=True)
class Lived:
    """What a life gave by metric, and why it did not give others that it should have given.

    Of peers all is by engine, and `facts` are what else its life told.
    """

    readings: Mapping[str, Reading]
    failed: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max((reading.process_s for reading in self.readings.values()), default=0.0)


class KeptLives:
    """The lives of one session, each at most once; `noun` is what they are called."""

    def __init__(self, path: Path, noun: str = "lives") -> None:
        self.lives: dict[Due, Lived] = {}
        self._noun = noun
        self._lines = LineFile(path, "an entry of kept lives", self._take)

    @classmethod
    def of_settings(
        cls, settings: Mapping[str, Any], verb: str = "history", noun: str = "lives"
    ) -> Self:
        """The file of a session's settings and of this ruler."""
        path = file_of({**settings, "ruler": ruler()}, FOLDER, f"{verb}-{{}}.jsonl")
        return cls(path, noun)

    def sentences(self) -> list[str]:
        """How many lives are reused, and which lines were left out."""
        found = (
            f"going on with {len(self.lives)} {self._noun} of an interrupted session; to measure "
            f"them again, remove {self._lines.path}"
        )
        return [found][: len(self.lives)] + self._lines.complaints

    def _take(self, entry: Mapping[str, Any]) -> None:
        due = Due(text(entry["kind"]), text(entry["commit"]), int(entry["round"]))
        self.lives[due] = Lived(
            msgspec.convert(entry["readings"], dict[str, Reading]),
            {name: text(why) for name, why in entry["failed"].items()},
            entry.get("facts", {}),
        )

    def keep(self, due: Due, lived: Lived) -> None:
        """Append a life."""
        self.lives[due] = lived
        readings = {name: reading.to_json() for name, reading in lived.readings.items()}
        facts = {"facts": lived.facts} if lived.facts else {}
        entry = {**asdict(due), "readings": readings, "failed": dict(lived.failed), **facts}
        self._lines.append(entry)

    def remove(self) -> None:
        """Forget them all: they are filed."""
        self._lines.path.unlink(missing_ok=True)
