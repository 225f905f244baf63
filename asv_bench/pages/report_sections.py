"""What other commands have left, as sections of the page; a section without data is left out."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asv_bench.git.repository import short
from asv_bench.history.histories import Histories
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.output.table import Column, Table
from asv_bench.pages.records import StoredRecord

MOST_ANSWERS = 30
"""Comparisons, bisections and explanations that are listed, the newest."""

_ANSWERS = (
    Column("started", "begun", kind="name"),
    Column("command", "command", kind="name"),
    Column("range", "commits", kind="name"),
    Column("machine", "machine", kind="name"),
    Column("answer", "answer", kind="text"),
)


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading and the tables below it; `anchor` is its address on the page."""

    anchor: str
    title: str
    tables: Sequence[Table]


def report_sections(histories: Histories, records: Sequence[StoredRecord]) -> list[ReportSection]:
    """All sections that have data."""
    sections = [
        ReportSection("answers", "Comparisons, bisections, explanations", _answers(records))
    ]
    if histories.is_own:
        folder = histories.folder
        sections += [
            ReportSection("headline", "Headline", _read(folder.glob("headline.json"), _headline)),
            ReportSection("peers", "Other engines", _read(_peer_files(folder), _peers)),
            ReportSection("roofline", "Roofline", _read(folder.glob("roofline.json"), _roofline)),
            ReportSection("ladder", "Ladder", _read(folder.glob("ladder-*.json"), _ladder)),
            ReportSection("counters", "Counters", _read(folder.glob("counters/*.json"), _counters)),
        ]
    return [section for section in sections if section.tables]


def _answers(records: Sequence[StoredRecord]) -> list[Table]:
    rows = []
    for record in reversed(records[-MOST_ANSWERS:]):
        ends = " to ".join(map(short, record.ends))
        begun = record.started[:16].replace("T", " ")
        rows.append((begun, record.command, ends, record.machine, _answer(record)))
    return [Table(_ANSWERS, rows)] if rows else []


def _answer(record: StoredRecord) -> str:
    if record.sentences:
        return " ".join(record.sentences)
    finding = record.results.get("finding")
    if finding:
        found = ", ".join(map(short, finding.get("suspects") or ()))
        return f"{finding['benchmark']}: {finding['outcome']}" + (f", {found}" if found else "")
    verdicts = Counter(str(one["verdict"]) for one in record.comparisons)
    return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())


def _read(paths: Iterable[Path], parse: Callable[[dict[str, Any]], list[Table]]) -> list[Table]:
    """The tables of all files that can be read."""
    tables: list[Table] = []
    for path in sorted(paths):
        with contextlib.suppress(UnreadableFile):
            tables += read_stored(path, "a report", parse)
    return tables


def _of(content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    commit = str(content["commit"] or "")
    return f"{machine['gpu'] or machine['cpu']}, commit {commit[:8] or 'unknown'}"


def _headline(content: dict[str, Any]) -> list[Table]:
    from asv_bench.run.tables import headline_table

    return [headline_table(content["rows"], _of(content))]


def _peer_files(folder: Path) -> Iterator[Path]:
    """What was kept of `peers`, else what it left last."""
    kept = list(folder.glob("peers*.json"))
    left = sorted(folder.glob("runs/peers-*.json"), key=lambda path: path.stat().st_mtime)
    yield from kept or left[-1:]


def _peers(content: dict[str, Any]) -> list[Table]:
    from asv_bench.peers.tables import rest_table, speed_table

    rows = content["results"]["rows"]
    return [speed_table(rows, _of(content)), rest_table(rows)]


def _roofline(content: dict[str, Any]) -> list[Table]:
    from asv_bench.lab.roofline.roofline import Roofline, RooflineRow, roofline_table

    results = [
        Roofline(**{**one, "rows": [RooflineRow(**row) for row in one["rows"]]})
        for one in content["results"]["rooflines"]
    ]
    return [roofline_table(one) for one in results]


def _ladder(content: dict[str, Any]) -> list[Table]:
    from asv_bench.studies.ladder.ladder_tables import rung_table

    return [rung_table(content["results"]["rungs"], _of(content))]


def _counters(content: dict[str, Any]) -> list[Table]:
    from asv_bench.lab.counters.counter_tables import step_table

    versions = content["versions"]
    key = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [step_table(content["steps"], key)]
