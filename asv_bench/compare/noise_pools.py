"""What this machine's noise was: differences between processes of one commit, by benchmark.

Each comparison adds its own, and the next one is judged by them, so that a difference far beyond
the noise needs five pairs only, and three or four where they come from several commands: a machine
may have been in one of its states throughout a single one. What a pair took is kept beside them. A
file holds those of one subject, machine, number of threads and ruler, since under another their
noise is another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from asv_bench.compare.judging import within_commit
from asv_bench.measure.log import Log, Shown, conditions, file_of
from asv_bench.measure.samples import Pair
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.stats.paired import POOL_SESSIONS, POOL_SIZE

FOLDER = WORKPLACE / ".asv" / "noise"
_MOST_LINES = 8 * POOL_SIZE


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

    `complaints` has a sentence for each line of the file that is none of ours.
    """

    def __init__(self, record: Record, folder: Path | None = None) -> None:
        measured = {"subject": record.settings.get("subject"), **conditions(record)}
        self._log = Log(file_of(measured, folder or FOLDER, "{}.jsonl"))
        self.path, self.complaints = self._log.path, self._log.complaints
        self._session = time.time_ns()
        # By benchmark and by session that showed any, the latest last.
        self._pools: dict[str, dict[int, list[float]]] = {}
        self._pair_s: dict[str, float] = {}
        for one in self._log.shown:
            self._learn(one)
        if len(self._log.shown) > _MOST_LINES:
            self.path.unlink()
            for session in sorted(set(chain.from_iterable(self._pools.values()))):
                of_session = {name: of.get(session, []) for name, of in self._pools.items()}
                self._log.keep(Shown(session, of_session, self._pair_s))

    def of(self, benchmarks: Sequence[str]) -> dict[str, Pool]:
        """Those benchmarks' pools that are full enough to judge by."""
        known = {name: self._pools.get(name, {}) for name in benchmarks}
        return {
            name: Pool(chain(*one.values()), len(one), self._pair_s.get(name, 0.0))
            for name, one in known.items()
            if sum(map(len, one.values())) == POOL_SIZE
        }

    def add(self, pairs: Mapping[str, Sequence[Pair]], *, are_same: bool = False) -> None:
        """Add what pairs showed within a commit, and keep it; only the latest count.

        `are_same`: they are of a commit with itself, and are such differences themselves. All that
        one of these objects adds is of one session.
        """
        differences = {
            name: [one.log_ratio for one in found] if are_same else within_commit(found)
            for name, found in pairs.items()
        }
        # In a round of several cells another life may lie between those of a pair.
        took = {
            name: statistics.median(
                min(one.seconds, one.base.process_s + one.head.process_s) for one in found
            )
            for name, found in pairs.items()
            if found
        }
        shown = Shown(self._session, differences, {name: one for name, one in took.items() if one})
        self._learn(shown)
        self._log.keep(shown)

    def _learn(self, shown: Shown) -> None:
        self._pair_s |= shown.pair_s
        for name, added in shown.differences.items():
            sessions = self._pools.setdefault(name, {})
            sessions.setdefault(shown.session, []).extend(added)
            while sum(map(len, sessions.values())) > POOL_SIZE:
                # So that many sessions have a part in it: the oldest of the longest.
                del max(sessions.values(), key=len)[0]
            self._pools[name] = {one: found for one, found in sessions.items() if found}
