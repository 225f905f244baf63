"""Which benchmarks there are, by the names that asv prints, and which of them were asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asv_bench.errors import NothingSelected
from asv_bench.history.asv_selection import Selection, names_with_parameters

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """One combination of a benchmark and its parameters.

    `name` is as asv prints it, such as "scheduler.Scheduler.track_ttft('gpt2')"; `identifier` as
    asv's runner wants it, such as "scheduler.Scheduler.track_ttft-1"; `unit` is "seconds", or what
    the figure counts.
    """

    name: str
    identifier: str
    unit: str


def entries_of(descriptions: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Every combination that there is, from asv's descriptions of the benchmarks."""
    entries: list[Entry] = []
    for description in descriptions:
        identifier, params = description["name"], description["params"]
        for number, name in enumerate(names_with_parameters(identifier, params)):
            numbered = f"{identifier}-{number}" if params else identifier
            entries.append(Entry(name, numbered, description["unit"]))
    return entries


def select(entries: Sequence[Entry], patterns: Sequence[str], *, has_gpu: bool) -> list[Entry]:
    """The entries that run on this machine and in whose name a regular expression is found.

    Refused if an expression is none; NothingSelected if one finds nothing that runs here.
    """
    wanted = Selection((), rounds=1).changed(patterns, None)
    for pattern in wanted.patterns:
        if not any(re.search(pattern, entry.name) for entry in entries):
            shown = ", ".join(entry.name for entry in entries[:_SHOWN])
            raise NothingSelected(
                f"--benchmark {pattern!r} is found in none of the {len(entries)} benchmarks; their "
                f"names are such as {shown}."
            )
    here = wanted.on(has_gpu=has_gpu)
    selected = [entry for entry in entries if here.includes(entry.name)]
    if not selected:
        where = "on a machine without a GPU" if has_gpu else "on a GPU"
        raise NothingSelected(f"what --benchmark names is measured {where} only.")
    return selected
