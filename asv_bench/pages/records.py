"""Records of the commands that compare and explain commits, as far as the page shows them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import msgspec

from asv_bench.compare.verdict import Comparison
from asv_bench.git.repository import short
from asv_bench.history.asv_results import EnvironmentFacts
from asv_bench.history.histories import OWN, Histories
from asv_bench.history.stored_changes import is_with
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored
from asv_bench.output.table import percentage

Command = Literal["compare", "bisect", "explain", "fixed"]
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
        pairs = f"{effect} against {short(said.base)} in {said.pairs_used} pairs"
        return f"{self.command}: {said.word}, {pairs}"

    def is_of(self, environment: EnvironmentFacts) -> bool:
        """Whether it says something of figures of an environment of its machine."""
        ran = self.machine
        return ran.python is None or is_with(environment, ran.python, ran.torch, ran.triton)


class _Subject(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _End(msgspec.Struct):
    hash: Text = ""


class _Settings(msgspec.Struct):
    # Records from before there were subjects name none, and are of kvtrail.
    subject: _Subject | None = None
    head: _End | None = None


class _Finding(msgspec.Struct):
    confirmations: list[Comparison] = []


class _Results(msgspec.Struct):
    comparisons: list[Comparison] = []
    finding: _Finding | None = None
    answer: list[Text] = []


class StoredRecord(msgspec.Struct):
    """What the page reads of a record."""

    command: Command
    started: Text  # when, as ISO writes it
    machine: RecordMachine
    settings: _Settings
    results: _Results

    def is_about(self, histories: Histories) -> bool:
        """Whether it is of the subject of some histories."""
        subject = self.settings.subject or _Subject(OWN)
        if histories.is_own or subject.kind == OWN:
            return histories.is_own and subject.kind == OWN
        return subject.name == histories.subject

    @property
    def verdicts(self) -> list[StoredVerdict]:
        """Those on single benchmarks, also of steps that a bisection confirmed."""
        compared = list(self.results.comparisons)
        if self.results.finding is not None:
            compared += self.results.finding.confirmations
        if self.command == "fixed":
            # Behind the name of a metric stands which two of the three are compared.
            compared = [replace(it, benchmark=it.benchmark.rpartition(" ")[0]) for it in compared]
        return [
            StoredVerdict(self.command, self.machine, one)
            for one in compared
            if one.effect is not None
        ]


def read_records(histories: Histories) -> dict[Path, StoredRecord]:
    """The records about the subject of some histories by their files, oldest first.

    They are looked for where commands leave them, and beside the histories, where people keep some.
    What is not such a record is passed over.
    """
    runs = histories.folder / "runs" if histories.is_own else RUNS
    folders = (runs, histories.folder, histories.folder / "verdicts")
    found: dict[Path, StoredRecord] = {}
    for command in get_args(Command):
        paths = {path.resolve() for one in folders for path in one.glob(f"{command}-*.json")}
        for path in sorted(paths, key=lambda path: path.stat().st_mtime)[-MOST:]:
            # Other files may be called so; whoever wants to know reads them with their own command.
            with contextlib.suppress(UnreadableFile):
                record = read_stored(path, "a record", StoredRecord)
                if record.is_about(histories):
                    found[path] = record
    return dict(sorted(found.items(), key=lambda one: one[1].started))


def reasons_of(records: Mapping[Path, StoredRecord]) -> dict[str, list[str]]:
    """What explanations found, the newest, by the commit whose change they explain."""
    return {
        record.settings.head.hash: record.results.answer
        for record in records.values()
        if record.command == "explain" and record.settings.head and record.results.answer
    }
