"""What this machine's noise was: differences between processes of one commit, by benchmark.

Each comparison adds its own, and the next one is judged by them, so that a difference far beyond
the noise needs five pairs only, and three or four where they come from several commands: a machine
may have been in one of its states throughout a single one. What a pair took is kept beside them. A
file holds those of one subject, machine, number of threads and ruler, since under another their
noise is another.
"""

from __future__ import annotations

import json
import statistics
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


class _Kept(msgspec.Struct):
    """What a file holds of a benchmark: the differences of each session, the latest last."""

    sessions: list[list[_Difference]] = []
    pair_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Pool(list[float]):
    """Differences within one commit that a machine showed, and in how many sessions.

    `pair_s` are the seconds that a pair took in the last of these; 0: unknown.
    """

    def __init__(
        self, differences: Iterable[float], sessions: int = POOL_SESSIONS, pair_s: float = 0.0
    ) -> None:
        super().__init__(differences)
        self.sessions = sessions
        self.pair_s = pair_s


class NoisePools:
    """The pools under which a record is measured.

    `complaints` has a sentence where the file is none of ours; the pools are empty then.
    """

    def __init__(self, record: Record, folder: Path | None = None) -> None:
        measured = {"subject": record.settings.get("subject"), **conditions(record)}
        self.path = file_of(measured, folder or FOLDER, "{}.json")
        self.complaints: list[str] = []
        self._kept: dict[str, _Kept] = {}  # by benchmark
        self._begun: set[str] = set()  # benchmarks of which the last session is this one
        if self.path.exists():
            try:
                # An older file has the differences alone, those of the first session as they are.
                older = list[_Difference | list[_Difference]]
                kept = partial(msgspec.convert, type=dict[str, _Kept | older])
                for name, found in read_stored(self.path, "a file of noise", kept).items():
                    if isinstance(found, list):
                        alone = [one for one in found if isinstance(one, float)]
                        known = [one for one in found if isinstance(one, list)]
                        found = _Kept([alone, *known] if alone else known)
                    self._kept[name] = found
            except UnreadableFile as error:
                self.complaints.append(
                    f"{error} The noise is learnt again from the comparisons to come."
                )

    def of(self, benchmarks: Sequence[str]) -> dict[str, Pool]:
        """Those benchmarks' pools that are full enough to judge by."""
        known = {name: self._kept.get(name, _Kept()) for name in benchmarks}
        pools = {
            name: Pool(chain(*one.sessions), len(one.sessions), one.pair_s)
            for name, one in known.items()
        }
        return {name: pool for name, pool in pools.items() if len(pool) == POOL_SIZE}

    def add(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add what pairs showed within a commit, and write the file; only the latest are kept.

        All that one of these objects adds is of one session.
        """
        self._add(pairs, {name: within_commit(measured) for name, measured in pairs.items()})

    def add_same(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add the differences that pairs of a commit with itself are, as `add` does."""
        self._add(pairs, {name: [one.log_ratio for one in pairs[name]] for name in pairs})

    def _add(
        self, pairs: Mapping[str, Sequence[Pair]], differences: Mapping[str, Sequence[float]]
    ) -> None:
        for name, added in differences.items():
            kept = self._kept.setdefault(name, _Kept())
            # In a round of several cells another life may lie between those of a pair.
            took = [
                min(one.seconds, one.base.process_s + one.head.process_s) for one in pairs[name]
            ]
            kept.pair_s = statistics.median(took) if any(took) else kept.pair_s
            sessions = kept.sessions
            if added and name not in self._begun:
                self._begun.add(name)
                sessions.append([])
            if added:
                sessions[-1] += added
            while sum(map(len, sessions)) > POOL_SIZE:
                # So that many sessions have a part in it: the oldest of the longest.
                del max(sessions, key=len)[0]
                sessions[:] = filter(None, sessions)
        write_text(self.path, json.dumps(msgspec.to_builtins(self._kept)) + "\n")
