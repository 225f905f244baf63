"""Records of the commands that compare and explain commits, as the page shows them."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from asv_bench.compare.verdict import Verdict, word_of
from asv_bench.git.repository import short
from asv_bench.history.asv_results import EnvironmentFacts
from asv_bench.history.histories import OWN, Histories
from asv_bench.history.stored_changes import is_with
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import UnreadableFile, read_stored, text
from asv_bench.output.table import percentage

COMMANDS = ("compare", "bisect", "explain", "fixed")
MOST = 200
"""Records of each command that are read, the newest."""


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What one comparison came to; `key` is the benchmark as addresses of the page have it.

    `effect`, `interval` and `pairs` are as in `compare.verdict.Comparison`; `versions` are those of
    Python, torch and Triton, where the record says.
    """

    machine: str
    key: str
    base: str
    head: str
    verdict: str
    sentence: str
    effect: float
    interval: tuple[float, float] | None = None
    pairs: int = 0
    versions: tuple[str, str | None, str | None] | None = None

    def is_of(self, environment: EnvironmentFacts) -> bool:
        """Whether it says something of figures of an environment of its machine."""
        return self.versions is None or is_with(environment, *self.versions)


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
    # Records from before there were subjects name none, and are of kvtrail.
    subject = content["settings"].get("subject") or {"kind": OWN}
    is_own = subject.get("kind") == OWN
    wanted = is_own if histories.is_own else not is_own and subject.get("name") == histories.subject
    command = text(content["command"])
    if not wanted or command not in COMMANDS:
        return []
    machine, results = text(content["machine"]["name"]), content["results"]
    finding = results.get("finding") or {}
    compared = [*results.get("comparisons", ()), *finding.get("confirmations", ())]
    fixed = [one["sentence"] for one in results.get("fixed", ())]
    sentences = tuple(text(one) for one in [*results.get("answer", ()), *fixed])
    record = StoredRecord(
        path=path,
        command=command,
        started=text(content["started"]),
        machine=machine,
        ends=_ends(compared[0] if compared else finding, content["settings"]),
        sentences=sentences,
        answer=" ".join(sentences) or _answer(finding, compared),
        verdicts=tuple(
            _verdict(one, command, content["machine"])
            for one in compared
            if one["effect"] is not None
        ),
    )
    return [record]


def _ends(one: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[str, str]:
    older = one.get("base") or one.get("good") or settings["base"]["hash"]
    newer = one.get("head") or one.get("bad") or settings["head"]["hash"]
    return text(older), text(newer)


def _answer(finding: Mapping[str, Any], compared: Sequence[Mapping[str, Any]]) -> str:
    if finding:
        found = ", ".join(map(short, finding.get("suspects") or ()))
        return f"{finding['benchmark']}: {finding['outcome']}" + (f", {found}" if found else "")
    verdicts = Counter(text(one["verdict"]) for one in compared)
    return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())


def _verdict(one: Mapping[str, Any], command: str, machine: Mapping[str, Any]) -> StoredVerdict:
    base, verdict = text(one["base"]), Verdict(one["verdict"])
    effect, pairs = float(one["effect"]), int(one["pairs_used"])
    word = word_of(verdict, str(one.get("unit", "")), effect)
    shown = percentage(effect, 2, signed=True)
    name, low_high, python = text(one["benchmark"]), one.get("interval"), machine.get("python")
    if command == "fixed":
        name = name.rpartition(" ")[0]  # of a metric, and which two of the three
    return StoredVerdict(
        text(machine["name"]),
        unquoted(name),
        base,
        text(one["head"]),
        str(verdict),
        f"{command}: {word}, {shown} against {short(base)} in {pairs} pairs",
        effect,
        None if low_high is None else (float(low_high[0]), float(low_high[1])),
        pairs,
        (python, machine.get("torch"), machine.get("triton")) if python else None,
    )
