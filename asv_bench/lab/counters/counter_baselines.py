"""The counters that a commit accepted, one file for each Python, torch and Triton.

Counters are exact, so any difference is a change of the code, for better or for worse. A file
changes only together with a sentence that says why.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from asv_bench.errors import Refused
from asv_bench.output.record import REPOSITORY, write_json
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored
from asv_bench.output.table import Column, Table

FOLDER = REPOSITORY / "reports" / "counters"
STEP_COLUMNS = (
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
"""The other counters are in the file."""

Counters: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By what was counted ("cpu, batch 8, step", or a kernel), then by the counter's name."""


class Versions(msgspec.Struct, frozen=True):
    """What counters depend on beside the code."""

    python: str
    torch: str
    triton: str

    @property
    def key(self) -> str:
        """The name of the file that holds the counters of these versions."""
        return f"py{self.python}-torch{self.torch}-triton{self.triton}"

    @property
    def path(self) -> Path:
        """That file."""
        return FOLDER / f"{self.key}.json"


class Acceptance(msgspec.Struct, frozen=True):
    """Why the counters are what they are, since which commit."""

    why: Text
    commit: str | None
    date: Text


class Baseline(msgspec.Struct, frozen=True):
    """What one file holds; the last acceptance is the newest."""

    schema: Literal[1]
    versions: Versions
    accepted: Annotated[tuple[Acceptance, ...], msgspec.Meta(min_length=1)]
    steps: Counters
    kernels: Counters


@dataclass(frozen=True, slots=True)
class CounterDifference:
    """One counter that is not what it was; None where one side does not have it."""

    what: str
    counter: str
    before: Any
    after: Any

    @property
    def change(self) -> str:
        """How much more or less, where both sides are numbers."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        if isinstance(self.before, int) and isinstance(self.after, int):
            return f"{self.after - self.before:+,}"
        return "other"


def installed_versions() -> Versions:
    """Of this process. A build of torch for another device is the same version."""
    torch, triton = (metadata.version(name).split("+")[0] for name in ("torch", "triton"))
    return Versions(".".join(platform.python_version_tuple()[:2]), torch, triton)


def read_baseline(path: Path) -> Baseline | None:
    """The accepted counters, None where there is no such file.

    Raises Refused if the file is not one that this ruler has written.
    """
    if not path.exists():
        return None
    try:
        return read_stored(path, "a baseline", Baseline)
    except UnreadableFile as error:
        raise Refused(
            f"{path} holds no baseline of counters ({error}) Restore it from git, or take it away "
            "and accept the counters again."
        ) from error


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it in one piece, one counter a line, so that git shows what changed."""
    write_json(path, msgspec.to_builtins(baseline), indent=1)


def differences(before: Counters, after: Counters) -> Iterator[CounterDifference]:
    """Every counter that differs, in the order of the names before, then of the new ones."""
    for what in (*before, *(name for name in after if name not in before)):
        old, new = before.get(what, {}), after.get(what, {})
        for counter in (*old, *(name for name in new if name not in old)):
            if old.get(counter) != new.get(counter):
                yield CounterDifference(what, counter, old.get(counter), new.get(counter))


def step_table(steps: Counters, key: str) -> Table:
    """A row for each path, batch and span."""
    rows = [
        (name, *(values[column.key] for column in STEP_COLUMNS[1:]))
        for name, values in steps.items()
    ]
    return Table(STEP_COLUMNS, rows, f"what a decode step does ({key})")
