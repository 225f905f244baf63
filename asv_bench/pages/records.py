"""Records of the commands that compare and explain commits, as the page shows them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from asv_bench.git.repository import short
from asv_bench.history.histories import OWN, Histories
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import UnreadableFile, read_stored, text
from asv_bench.output.table import percentage

COMMANDS = ("compare", "bisect", "explain", "fixed")
MOST = 200
"""Records of each command that are read, the newest."""


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What one comparison came to; `key` is the benchmark as addresses of the page have it."""

    machine: str
    key: str
    base: str
    head: str
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of one of `COMMANDS` about one subject."""

    path: Path
    command: str
    started: str
    machine: str
    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    @property
    def ends(self) -> tuple[str, str]:
        """The older and the newer of the commits that it is about."""
        one = next(iter(self.comparisons), None) or self.results.get("finding") or {}
        older = one.get("base") or one.get("good") or self.settings["base"]["hash"]
        newer = one.get("head") or one.get("bad") or self.settings["head"]["hash"]
        return text(older), text(newer)

    @property
    def sentences(self) -> list[str]:
        """The answer of `explain` or `fixed`; of other commands it is in the comparisons."""
        fixed = [one["sentence"] for one in self.results.get("fixed", ())]
        return [text(one) for one in [*self.results.get("answer", ()), *fixed]]

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """The comparisons in it, those that a bisection confirmed steps with too."""
        finding = self.results.get("finding") or {}
        return [*self.results.get("comparisons", ()), *finding.get("confirmations", ())]

    def verdicts(self) -> Iterator[StoredVerdict]:
        """What its comparisons came to, but for those that say nothing of figures."""
        for one in self.comparisons:
            effect = one["effect"]
            if effect is None:
                continue
            sentence = (
                f"{self.command}: {one['verdict']}, {percentage(effect, 2, signed=True)} against "
                f"{short(one['base'])} in {one['pairs_used']} pairs"
            )
            key = unquoted(one["benchmark"])
            yield StoredVerdict(
                self.machine, key, one["base"], one["head"], one["verdict"], sentence
            )


def unquoted(benchmark: str) -> str:
    """A benchmark as asv prints it, without the quotes of texts among its parameters."""
    return re.sub("['\"]", "", benchmark)


def read_records(histories: Histories) -> list[StoredRecord]:
    """The records about the subject of some histories, oldest first.

    They are looked for where commands leave them, and beside the histories, where people keep some.
    What is not such a record is passed over.
    """
    names = [f"{command}-*.json" for command in COMMANDS]
    runs = histories.folder / "runs" if histories.is_own else RUNS
    folders = (runs, histories.folder, histories.folder / "verdicts")
    records: list[StoredRecord] = []
    for name in names:
        paths = {path.resolve() for folder in folders for path in folder.glob(name)}
        newest = sorted(paths, key=lambda path: path.stat().st_mtime)[-MOST:]
        for path in newest:
            # Other files may be called so; whoever wants to know reads them with their own command.
            with contextlib.suppress(UnreadableFile):
                records += read_stored(path, "a record", partial(_of, histories, path))
    return sorted(records, key=lambda record: record.started)


def verdicts_of(records: Sequence[StoredRecord]) -> list[StoredVerdict]:
    """Everything that records say of single benchmarks, oldest first."""
    return [verdict for record in records for verdict in record.verdicts()]


def reasons_of(records: Sequence[StoredRecord]) -> dict[str, list[str]]:
    """What explanations found, the newest, by the commit whose change they explain."""
    return {
        record.ends[1]: record.sentences
        for record in records
        if record.command == "explain" and record.sentences
    }


def _of(histories: Histories, path: Path, content: Mapping[str, Any]) -> list[StoredRecord]:
    """The record, where it is about this subject."""
    # Records from before there were subjects name none, and are of kvtrail.
    subject = content["settings"].get("subject") or {"kind": OWN}
    is_own = subject.get("kind") == OWN
    wanted = is_own if histories.is_own else not is_own and subject.get("name") == histories.subject
    command = text(content["command"])
    if not wanted or command not in COMMANDS:
        return []
    started, machine = text(content["started"]), text(content["machine"]["name"])
    record = StoredRecord(path, command, started, machine, content["settings"], content["results"])
    # Fails here where what is read of it later is not there.
    _ = record.ends, record.sentences, list(record.verdicts())
    return [record]
