"""What this machine's noise was: differences between processes of one commit, by benchmark.

Each comparison adds its own, and the next one is judged by them, so that a difference far beyond
the noise needs three or four pairs only. A file holds those of one subject, machine, number of
threads and ruler, since under another their noise is another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from asv_bench.compare.judging import within_commit
from asv_bench.measure.log import conditions, file_of
from asv_bench.measure.samples import Pair
from asv_bench.output.destinations import write_text
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.stats.paired import POOL_SIZE

FOLDER = WORKPLACE / ".asv" / "noise"
_Differences = dict[str, list[Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]]]


class NoisePools:
    """The pools under which a record is measured.

    `complaints` has a sentence where the file is none of ours; the pools are empty then.
    """

    def __init__(self, record: Record, folder: Path | None = None) -> None:
        measured = {"subject": record.settings.get("subject"), **conditions(record)}
        self.path = file_of(measured, folder or FOLDER, "{}.json")
        self.complaints: list[str] = []
        self._differences: _Differences = {}
        if self.path.exists():
            try:
                kept = partial(msgspec.convert, type=_Differences)
                self._differences = read_stored(self.path, "a file of noise", kept)
            except UnreadableFile as error:
                self.complaints.append(
                    f"{error} The noise is learnt again from the comparisons to come."
                )

    def of(self, benchmarks: Sequence[str]) -> dict[str, list[float]]:
        """Those benchmarks' pools that are full enough to judge by."""
        pools = {name: self._differences.get(name, []) for name in benchmarks}
        return {name: pool for name, pool in pools.items() if len(pool) == POOL_SIZE}

    def add(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add what pairs showed within a commit, and write the file; only the latest are kept."""
        self._add({name: within_commit(measured) for name, measured in pairs.items()})

    def add_same(self, pairs: Mapping[str, Sequence[Pair]]) -> None:
        """Add the differences that pairs of a commit with itself are, as `add` does."""
        self._add({name: [one.log_ratio for one in pairs[name]] for name in pairs})

    def _add(self, differences: Mapping[str, Sequence[float]]) -> None:
        for name, added in differences.items():
            pool = [*self._differences.get(name, []), *added]
            self._differences[name] = pool[-POOL_SIZE:]
        write_text(self.path, json.dumps(self._differences) + "\n")
