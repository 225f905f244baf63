"""Records of the commands that compare and explain commits, as the page shows them."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.compare.verdict import Comparison
from asv_bench.git.repository import short
from asv_bench.history.asv_results import EnvironmentFacts
from asv_bench.history.histories import OWN, Histories
from asv_bench.history.stored_changes import is_with
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored, text
from asv_bench.output.table import percentage

COMMANDS = ("compare", "bisect", "explain", "fixed")
MOST = 200
"""Records of each command that are read, the newest."""


class RecordMachine(msgspec.Struct, frozen=True):
    """The machine of a record, and the versions that are known of it."""

    name: Text
    python: str | None = None
    torch: str | None = None
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What a command said of one benchmark of two commits."""

    command: str
    machine: RecordMachine
    said: Comparison

    @property
    def key(self) -> str:
        """The benchmark as addresses of the page have it: without the quotes of texts."""
        return re.sub("['\"]", "", self.said.benchmark)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        said = self.said
        effect = percentage(said.effect or 0.0, 2, signed=True)
        ends = f"{effect} against {short(said.base)} in {said.pairs_used} pairs"
        return f"{self.command}: {said.word}, {ends}"

    def is_of(self, environment: EnvironmentFacts) -> bool:
        """Whether it says something of figures of an environment of its machine."""
        ran = self.machine
        return ran.python is None or is_with(environment, ran.python, ran.torch, ran.triton)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What a record of one of `COMMANDS` says of a subject."""

    path: Path
    command: str
    started: str  # when, as ISO writes it
    machine: str
    # The older and the newer of the commits that it is about, full hashes or labels.
    ends: tuple[str, str]
    sentences: tuple[str, ...]  # the answer of `explain` or `fixed`
    answer: str  # that of any command, in a line
    # Of single benchmarks, those that a bisection confirmed steps with too.
    verdicts: tuple[StoredVerdict, ...]

    @property
    def begun(self) -> str:
        """When, for people."""
        return self.started[:16].replace("T", " ")

    @property
    def range(self) -> str:
        """Its ends, readable."""
        return " to ".join(map(short, self.ends))


class _RecordFile(msgspec.Struct):
    command: Text
    started: Text
    machine: RecordMachine
    settings: dict[str, Any]
    results: dict[str, Any]

    def is_about(self, histories: Histories) -> bool:
        """Whether it is of a command and a subject that are wanted."""
        # Records from before there were subjects name none, and are of kvtrail.
        subject = self.settings.get("subject") or {"kind": OWN}
        is_own = subject.get("kind") == OWN
        is_subject = is_own or subject.get("name") == histories.subject
        return self.command in COMMANDS and is_own == histories.is_own and is_subject


def read_records(histories: Histories) -> list[StoredRecord]:
    """The records about the subject of some histories, oldest first.

    They are looked for where commands leave them, and beside the histories, where people keep some.
    What is not such a record is passed over.
    """
    runs = histories.folder / "runs" if histories.is_own else RUNS
    folders = (runs, histories.folder, histories.folder / "verdicts")
    records: list[StoredRecord] = []
    for command in COMMANDS:
        paths = {path.resolve() for one in folders for path in one.glob(f"{command}-*.json")}
        newest = sorted(paths, key=lambda path: path.stat().st_mtime)[-MOST:]
        for path in newest:
            # Other files may be called so; whoever wants to know reads them with their own command.
            with contextlib.suppress(UnreadableFile):
                records += read_stored(path, "a record", partial(_of, histories, path))
    return sorted(records, key=lambda record: record.started)


def verdicts_of(records: Sequence[StoredRecord]) -> list[StoredVerdict]:
    """Everything that records say of single benchmarks, oldest first."""
    return [verdict for record in records for verdict in record.verdicts]


def reasons_of(records: Sequence[StoredRecord]) -> dict[str, tuple[str, ...]]:
    """What explanations found, the newest, by the commit whose change they explain."""
    return {
        record.ends[1]: record.sentences
        for record in records
        if record.command == "explain" and record.sentences
    }


def _of(histories: Histories, path: Path, content: Mapping[str, Any]) -> list[StoredRecord]:
    """The record, where it is about this subject."""
    file = msgspec.convert(content, _RecordFile)
    if not file.is_about(histories):
        return []
    settings, results = file.settings, file.results
    finding = results.get("finding") or {}
    given = [*results.get("comparisons", ()), *finding.get("confirmations", ())]
    compared = msgspec.convert(given, list[Comparison])
    if compared:
        ends = compared[0].base, compared[0].head
    else:
        ends = (
            text(finding.get("good") or settings["base"]["hash"]),
            text(finding.get("bad") or settings["head"]["hash"]),
        )
    fixed = [one["sentence"] for one in results.get("fixed", ())]
    sentences = tuple(text(one) for one in [*results.get("answer", ()), *fixed])
    if file.command == "fixed":
        # Behind the name of a metric stands which two of the three are compared.
        compared = [replace(one, benchmark=one.benchmark.rpartition(" ")[0]) for one in compared]
    record = StoredRecord(
        path=path,
        command=file.command,
        started=file.started,
        machine=file.machine.name,
        ends=ends,
        sentences=sentences,
        answer=" ".join(sentences) or _answer(finding, compared),
        verdicts=tuple(
            StoredVerdict(file.command, file.machine, one)
            for one in compared
            if one.effect is not None
        ),
    )
    return [record]


def _answer(finding: Mapping[str, Any], compared: Sequence[Comparison]) -> str:
    if finding:
        found = ", ".join(map(short, finding.get("suspects") or ()))
        return f"{finding['benchmark']}: {finding['outcome']}" + (f", {found}" if found else "")
    verdicts = Counter(str(one.verdict) for one in compared)
    return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
