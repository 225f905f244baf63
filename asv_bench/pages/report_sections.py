"""What other commands have left, as sections of the page; a section without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

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
_STEPS = (
    Column("what", "path, batch, span", kind="name"),
    Column("operators", "operators"),
    Column("new_tensors", "new", "tensors"),
    Column("new_bytes", "new", "bytes"),
    Column("copies_to_device", "to", "device"),
    Column("copies_to_host", "to", "host"),
    Column("graph_replays", "replays"),
    Column("launches", "launches"),
    Column("engine_python_calls", "engine's", "calls"),
    Column("python_calls", "all", "calls"),
)
"""The other counters of a step are in the file."""

Parse: TypeAlias = Callable[[dict[str, Any]], list[Table]]
"""Makes tables of a stored file; what it raises is as `read_stored` takes it."""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading and the tables below it; `anchor` is its address on the page."""

    anchor: str
    title: str
    tables: Sequence[Table]


def report_sections(
    histories: Histories, records: Sequence[StoredRecord], complaints: list[str]
) -> list[ReportSection]:
    """All sections that have data.

    A file that cannot be shown is left out with a sentence in `complaints`.
    """

    def read(pattern: str, parse: Parse) -> list[Table]:
        return _read(sorted(histories.folder.glob(pattern)), parse, complaints)

    sections = [
        ReportSection("answers", "Comparisons, bisections, explanations", _answers(records))
    ]
    if histories.is_own:
        sections += [
            ReportSection("headline", "Headline", read("headline.json", _headline)),
            ReportSection("peers", "Other engines", read("peers*.json", _peers)),
            ReportSection("roofline", "Roofline", read("roofline.json", _roofline)),
            ReportSection("ladder", "Ladder", read("ladder-*.json", _ladder)),
            ReportSection("counters", "Counters", read("counters/*.json", _counters)),
        ]
    return [section for section in sections if section.tables]


def _answers(records: Sequence[StoredRecord]) -> list[Table]:
    rows = []
    for record in reversed(records[-MOST_ANSWERS:]):
        ends = " to ".join(map(short, record.ends))
        begun = record.started[:16].replace("T", " ")
        rows.append((begun, record.command, ends, record.machine, record.answer))
    return [Table(_ANSWERS, rows)] if rows else []


def _read(paths: Sequence[Path], parse: Parse, complaints: list[str]) -> list[Table]:
    """The tables of all files that can be shown."""

    def shown(content: dict[str, Any]) -> list[Table]:
        made = parse(content)
        for table in made:
            table.to_texts()  # fails here where a figure is none
        return made

    tables: list[Table] = []
    for path in paths:
        try:
            tables += read_stored(path, "a report", shown)
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
    return tables


def _of(content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    commit = str(content["commit"] or "")
    return f"{machine['gpu'] or machine['cpu']}, commit {commit[:8] or 'unknown'}"


def _headline(content: dict[str, Any]) -> list[Table]:
    from asv_bench.run.report import headline_table

    return [headline_table(content["rows"], _of(content))]


def _peers(content: dict[str, Any]) -> list[Table]:
    from asv_bench.peers.tables import rest_table, speed_table

    rows = content["results"]["rows"]
    return [speed_table(rows, _of(content)), rest_table(rows)]


def _roofline(content: dict[str, Any]) -> list[Table]:
    from asv_bench.lab.roofline import Roofline, roofline_table

    results = msgspec.convert(content["results"]["rooflines"], list[Roofline])
    return [roofline_table(one) for one in results]


def _ladder(content: dict[str, Any]) -> list[Table]:
    from asv_bench.studies.ladder.ladder_tables import rung_table

    return [rung_table(content["results"]["rungs"], _of(content))]


def _counters(content: dict[str, Any]) -> list[Table]:
    versions = content["versions"]
    key = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [step_table(content["steps"], key)]


def step_table(steps: Mapping[str, Mapping[str, Any]], key: str) -> Table:
    """A row for each path, batch and span of counted steps, under the key of their versions."""
    rows = [
        (name, *(values[column.key] for column in _STEPS[1:])) for name, values in steps.items()
    ]
    return Table(_STEPS, rows, f"what a decode step does ({key})")
