"""Where a stored history begins a new series, as something else than the commit changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from asv_bench.git.repository import Commit, short
from asv_bench.history.asv_results import EnvironmentFacts, Figure
from asv_bench.measure.software import Software, other_client
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.words import first_of

CLIENTS = "asv-clients"
"""The folder beside asv's results that keeps what asked servers, each in a file by its hash."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first commit, or label, of a line that was measured in another environment."""

    machine: str
    commit: str
    benchmarks: Sequence[str]
    before: Mapping[str, str]
    environment: Mapping[str, str]
    changed: str  # what differs, such as "driver 550.54 → 560.35"

    @property
    def sentence(self) -> str:
        return (
            f"{self.machine}: a new series begins at {short(self.commit)}, as this changed: "
            f"{self.changed} ({first_of(self.benchmarks, 3)})."
        )


def beginnings(
    machine: str, figures: Sequence[Figure], commits: Sequence[Commit], folder: Path
) -> list[Beginning]:
    """Those of a machine whose results are in `folder`, in the order of measuring.

    `commits` are those of the line, oldest first.
    """
    names = [commit.hash for commit in commits]
    places = {name: place for place, name in enumerate(names)}
    found: list[Beginning] = []
    measured: dict[EnvironmentFacts, dict[str, int]] = {}  # with the first place, by benchmark
    for one in sorted(figures, key=lambda one: one.started_ms):
        if not one.failed and one.commit in places:
            first, name = measured.setdefault(one.environment, {}), one.series.name
            first[name] = min(first.get(name, len(places)), places[one.commit])
    for number, (environment, first) in enumerate(measured.items()):
        for earlier in [*measured][:number][::-1]:
            if both := sorted(first.keys() & measured[earlier].keys()):
                ends = dict(earlier), dict(environment)
                begun = names[min(first[one] for one in both)]
                changed = _changed(*ends, folder / CLIENTS)
                found.append(Beginning(machine, begun, both, *ends, changed))
                break
    return found


def _changed(before: Mapping[str, str], after: Mapping[str, str], clients: Path) -> str:
    """What differs between two environments, in words."""
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    # asv's name for an environment repeats what is in it.
    names = [name for name in names if name != "env_name"] or names
    there, now = ([facts.get(name, "not noted") for name in names] for facts in (before, after))
    moved = {name: f"{one} → {other}" for name, one, other in zip(names, there, now, strict=True)}
    if "client" in before and "client" in moved:
        with suppress(UnreadableFile):
            read = partial(msgspec.convert, type=Software)
            paths = (clients / f"{facts.get('client')}.json" for facts in (before, after))
            asked = other_client(*(read_stored(path, "a client", read) for path in paths))
            moved["client"] = first_of(asked, 6)
    return ", ".join(f"{name} {text}" for name, text in moved.items())
