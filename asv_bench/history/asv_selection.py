"""Which benchmarks there are and which a command measures, in how many processes each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from asv_bench.errors import NothingSelected, Refused

# In the parameters of what is measured only on a GPU, and only without one.
_GPU_PARAMETERS = r"'gpt2'|'gpt2-b|'llama8b"
_CPU_PARAMETERS = r"'gpt2-tiny'|'cpu-small'"


def require_patterns(option: str, patterns: Iterable[str]) -> None:
    """Raise Refused unless all that an option was given are regular expressions."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise Refused(f"{option} {pattern!r} is not a regular expression: {error}.") from None


class Selection(msgspec.Struct, frozen=True):
    """Benchmarks, as regular expressions that asv looks for in `name(parameters)`, and rounds."""

    patterns: tuple[str, ...]
    rounds: int  # processes a figure

    def changed(self, patterns: Sequence[str], rounds: int | None) -> Selection:
        """The same with what the user asks for instead; Refused if that is wrong."""
        require_patterns("--benchmark", patterns)
        if rounds is not None and rounds < 1:
            raise Refused(f"--rounds is {rounds}; it must be at least 1.")
        return Selection(tuple(patterns) or self.patterns, rounds or self.rounds)

    def any_of(self) -> tuple[str, ...]:
        """One pattern, which is found where one of them is: a benchmark may lack in a checkout."""
        return ("|".join(f"(?:{pattern})" for pattern in self.patterns),)


_FILE = Path(__file__).with_name("selections.toml")
_SELECTIONS = msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, Selection])
QUICK, STANDARD, FULL = (_SELECTIONS[name] for name in ("quick", "standard", "full"))


def is_found(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of some regular expressions is found in `name(parameters)`."""
    return any(re.search(pattern, name) for pattern in patterns)


def on_the_gpu(benchmark: str) -> bool:
    """Whether `name(parameters)` measures the GPU."""
    return re.search(_GPU_PARAMETERS, benchmark) is not None


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
        for number, values in enumerate(itertools.product(*params)):
            name = f"{identifier}({', '.join(values)})" if values else identifier
            numbered = f"{identifier}-{number}" if params else identifier
            entries.append(Entry(name, numbered, description["unit"]))
    return entries


def select(entries: Sequence[Entry], patterns: Sequence[str], *, has_gpu: bool) -> list[Entry]:
    """The entries that run on this machine and in whose name a regular expression is found.

    Refused if an expression is none; NothingSelected if one finds nothing that runs here.
    """
    require_patterns("--benchmark", patterns)
    for pattern in patterns:
        if not any(is_found(entry.name, [pattern]) for entry in entries):
            shown = ", ".join(entry.name for entry in entries[:6])
            raise NothingSelected(
                f"--benchmark {pattern!r} is found in none of the {len(entries)} benchmarks; their "
                f"names are such as {shown}."
            )
    found = [entry for entry in entries if is_found(entry.name, patterns)]
    foreign = _CPU_PARAMETERS if has_gpu else rf"{_GPU_PARAMETERS}|track_time_over_floor"
    selected = [entry for entry in found if not re.search(foreign, entry.name)]
    if not selected:
        where = "on a machine without a GPU" if has_gpu else "on a GPU"
        raise NothingSelected(f"what --benchmark names is measured {where} only.")
    return selected
