"""Lives on disk: a session of a history that was interrupted goes on with what it had measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asv_bench.compare.kept_pairs import file_of, reading_from_json, ruler
from asv_bench.output.line_file import LineFile
from asv_bench.output.record import WORKPLACE
from asv_bench.output.stored_json import text
from asv_bench.process.samples import Reading

FOLDER = WORKPLACE / ".asv" / "lives"


@dataclass(frozen=True, slots=True)
class Cell:
    """A life to measure: on which kind of machine, of which commit or label, in which round."""

    kind: str
    commit: str
    round: int


@dataclass(frozen=True, slots=True)
class Lived:
    """What a life gave by metric, and why it did not give others that it should have given."""

    readings: Mapping[str, Reading]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max((reading.process_s for reading in self.readings.values()), default=0.0)


class KeptLives:
    """The lives of one session, each at most once.

    Attributes
    ----------
    lives
        Those that were measured.
    """

    def __init__(self, path: Path) -> None:
        self.lives: dict[Cell, Lived] = {}
        self._lines = LineFile(path, "an entry of kept lives", self._take)

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> KeptLives:
        """The file of a session's settings and of this ruler."""
        return cls(file_of({**settings, "ruler": ruler()}, FOLDER, "history-{}.jsonl"))

    def sentences(self) -> list[str]:
        """How many lives are reused, and which lines were left out."""
        found = (
            f"going on with {len(self.lives)} lives of an interrupted session; to measure them "
            f"again, remove {self._lines.path}"
        )
        return [found][: len(self.lives)] + self._lines.complaints

    def _take(self, entry: Mapping[str, Any]) -> None:
        cell = Cell(text(entry["kind"]), text(entry["commit"]), int(entry["round"]))
        self.lives[cell] = Lived(
            {name: reading_from_json(one) for name, one in entry["readings"].items()},
            {name: text(why) for name, why in entry["failed"].items()},
        )

    def keep(self, cell: Cell, lived: Lived) -> None:
        """Append a life."""
        self.lives[cell] = lived
        readings = {name: reading.to_json() for name, reading in lived.readings.items()}
        cell_json = {"kind": cell.kind, "commit": cell.commit, "round": cell.round}
        self._lines.append({**cell_json, "readings": readings, "failed": dict(lived.failed)})

    def remove(self) -> None:
        """Forget them all: they are filed."""
        self._lines.path.unlink(missing_ok=True)
