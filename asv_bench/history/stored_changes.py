"""The changes in everything that is stored, each environment of a machine by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asv_bench.errors import NothingMeasured, Refused
from asv_bench.history.asv_results import (
    EnvironmentFacts,
    Figure,
    Results,
    Series,
    dates_of,
    differing,
)
from asv_bench.history.change_points import Change, Point, changes_in, points_of
from asv_bench.history.histories import Histories
from asv_bench.history.sessions import read_ratios, sessions_of
from asv_bench.process.machine import MachineFacts


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Every change with the points of its series, largest first; and notes for the reader."""

    found: list[tuple[Change, list[Point]]]
    notes: list[str]


def stored_changes(
    histories: Histories, patterns: Sequence[str], machine: str | None, tip: str = "HEAD"
) -> StoredChanges:
    """The changes in the stored results, each environment of a machine by itself.

    One of the `patterns` is in a benchmark's name; none: all benchmarks. Series are laid along the
    line of first parents that ends at `tip`. Raises NothingMeasured if nothing is stored, and
    Refused if there is nothing of a `machine`; None: every machine's results.
    """
    results = histories.read()
    notes = list(results.complaints)
    if not results.figures:
        raise NothingMeasured(
            " ".join(["no history is stored; `history` measures a range of commits.", *notes])
        )
    if machine is not None and machine not in results.machines:
        raise Refused(
            f"there are no results of a machine called {machine!r}; there are those of "
            f"{', '.join(sorted(results.machines))}."
        )
    found: list[tuple[Change, list[Point]]] = []
    for name in [machine] if machine else sorted(results.machines):
        figures = [figure for figure in results.figures if figure.machine == name]
        commits, beside = histories.on_line(dates_of(figures), tip)
        if beside and histories.labels:
            notes.append(f"{name}: {beside} of those measured are no labels of [axis] any more.")
        elif beside:
            notes.append(
                f"{name}: {beside} of the commits measured are not on {tip}'s line of first "
                f"parents and are in no series; --branch names another line."
            )
        notes += _environments(name, results)
        ratios = read_ratios(histories.sessions, name, notes)
        sessions = sessions_of(figures)
        by_series: dict[tuple[Series, EnvironmentFacts], list[Figure]] = {}
        for figure in figures:
            if not patterns or any(text in figure.series.benchmark for text in patterns):
                by_series.setdefault((figure.series, figure.environment), []).append(figure)
        for members in by_series.values():
            points = points_of(members, commits, ratios, sessions)
            found += [(change, points) for change in changes_in(points)]
    return StoredChanges(sorted(found, key=lambda entry: -abs(entry[0].effect)), notes)


def is_of(here: MachineFacts, change: Change) -> bool:
    """Whether comparing here can confirm a change: its figures are of this machine and software."""
    versions = here.python, here.torch, here.triton
    return change.machine == here.name and is_with(change.environment, *versions)


def is_with(
    environment: EnvironmentFacts, python: str, torch: str | None, triton: str | None
) -> bool:
    """Whether figures of an environment were measured with these versions, as far as it says."""
    minor = ".".join(python.split(".")[:2])
    software = {"python": minor, "torch": torch or "none", "triton": triton or "none"}
    stored = dict(environment)
    return all(stored.get(name, version) == version for name, version in software.items())


def _environments(machine: str, results: Results) -> list[str]:
    """What a machine's environments differ in, where it has several."""
    environments = results.environments_of(machine)
    if len(environments) < 2:
        return []
    listed = "; ".join(differing(one, environments) for one in environments)
    return [f"{machine} has results of {len(environments)} environments, judged apart: {listed}."]
