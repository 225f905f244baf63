"""Verdicts in the records of commands that compare commits, as far as the page shows them."""

from __future__ import annotations

import re
from contextlib import suppress
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

Command = Literal["compare", "bisect", "fixed"]
MOST = 200
"""Records of each command that are read, the newest."""


class _Machine(msgspec.Struct, frozen=True):
    name: Text
    python: str | None = None
    torch: str | None = None
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What a command said of one benchmark of two commits."""

    command: str
    machine: _Machine
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


class _Settings(msgspec.Struct):
    # Records from before there were subjects name none, and are of kvtrail.
    subject: _Subject | None = None


class _Finding(msgspec.Struct):
    confirmations: list[Comparison] = []


class _Results(msgspec.Struct):
    comparisons: list[Comparison] = []
    finding: _Finding | None = None


class _Record(msgspec.Struct):
    command: Command
    started: Text  # when, as ISO writes it
    machine: _Machine
    settings: _Settings
    results: _Results

    def is_about(self, histories: Histories) -> bool:
        """Whether it is of the subject of some histories."""
        subject = self.settings.subject or _Subject(OWN)
        if histories.is_own or subject.kind == OWN:
            return histories.is_own and subject.kind == OWN
        return subject.name == histories.subject

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


def read_verdicts(histories: Histories) -> dict[Path, list[StoredVerdict]]:
    """The verdicts on the subject of some histories by their records, oldest first.

    Records are looked for where commands leave them, and beside the histories, where people keep
    some. What is not such a record is passed over.
    """
    runs = histories.folder / "runs" if histories.is_own else RUNS
    folders = (runs, histories.folder, histories.folder / "verdicts")
    found: list[tuple[str, Path, list[StoredVerdict]]] = []
    for command in get_args(Command):
        paths = {path.resolve() for one in folders for path in one.glob(f"{command}-*.json")}
        for path in sorted(paths, key=lambda path: path.stat().st_mtime)[-MOST:]:
            # Other files may be called so; whoever wants to know reads them with their own command.
            with suppress(UnreadableFile):
                record = read_stored(path, "a record", _Record)
                if record.is_about(histories):
                    found.append((record.started, path, record.verdicts()))
    return {path: verdicts for _, path, verdicts in sorted(found, key=lambda one: one[0])}
