"""What this machine's noise was: differences between processes of one commit, by benchmark.

Each comparison adds its own, and the next one is judged by them, so that a difference far beyond
the noise needs five pairs only, and three or four where they come from several commands: a machine
may have been in one of its states throughout a single one. A file holds those of one subject,
machine, number of threads and ruler, since under another their noise is another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec

from asv_bench.compare.judging import within_commit
from asv_bench.measure.log import conditions, file_of
from asv_bench.measure.samples import Pair
from asv_bench.output.destinations import write_text
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.stats.paired import POOL_SESSIONS, POOL_SIZE

FOLDER = WORKPLACE / ".asv" / "noise"
_Difference = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
# By benchmark, those of the first session, as they are, and those of each other.
_Differences = dict[str, list[_Difference | list[_Difference]]]


class Pool(list[float]):
    """Differences within one commit that a machine showed, and in how many sessions."""

    def __init__(self, differences: Iterable[float], sessions: int = POOL_SESSIONS) -> None:
        super().__init__(differences)
        self.sessions = sessions


class NoisePools:
    """The pools under which a record is measured.

    `complaints` has a sentence where the file is none of ours; the pools are empty then.
    """

    def __init__(self, record: Record, folder: Path | None = None) -> None:
        measured = {"subject": record.settings.get("subject"), **conditions(record)}
        self.path = file_of(measured, folder or FOLDER, "{}.json")
        self.complaints: list[str] = []
        # By benchmark, of each session that showed any, the latest last.
        self._sessions: dict[str, list[list[float]]] = {}
        self._begun: set[str] = set()  # benchmarks of which the last session is this one
        if self.path.exists():
            try:
                kept = partial(msgspec.convert, type=_Differences)
                for name, found in read_stored(self.path, "a file of noise", kept).items():
                    alone = [one for one in found if isinstance(one, float)]
                    known = [one for one in found if isinstance(one, list)]
                    self._sessions[name] = [alone, *known] if alone else known
            except UnreadableFile as error:
                self.complaints.append(
                    f"{error} The noise is learnt again from the comparisons to come."
                )

    def of(self, benchmarks: Sequence[str]) -> dict[str, Pool]:
        """Those benchmarks' pools that are full enough to judge by."""
        known = {name: self._sessions.get(name, []) for name in benchmarks}
        pools = {name: Pool(chain(*sessions), len(sessions)) for name, sessions in known.items()}
        return {name: pool for name, pool in pools.items() if len(pool) == POOL_SIZE}

    def add(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add what pairs showed within a commit, and write the file; only the latest are kept.

        All that one of these objects adds is of one session.
        """
        self._add({name: within_commit(measured) for name, measured in pairs.items()})

    def add_same(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add the differences that pairs of a commit with itself are, as `add` does."""
        self._add({name: [one.log_ratio for one in pairs[name]] for name in pairs})

    def _add(self, differences: Mapping[str, Sequence[float]]) -> None:
        for name, added in differences.items():
            sessions = self._sessions.setdefault(name, [])
            if added and name not in self._begun:
                self._begun.add(name)
                sessions.append([])
            if added:
                sessions[-1] += added
            while sum(map(len, sessions)) > POOL_SIZE:
                # So that many sessions have a part in it: the oldest of the longest.
                del max(sessions, key=len)[0]
                sessions[:] = filter(None, sessions)
        written = {name: [*chain(*one[:1]), *one[1:]] for name, one in self._sessions.items()}
        write_text(self.path, json.dumps(written) + "\n")
