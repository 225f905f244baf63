"""What is stored of each machine along one line of commits or labels, and where it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asv_bench.errors import NothingMeasured, Refused
from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import (
    EnvironmentFacts,
    Figure,
    Results,
    Series,
    dates_of,
    differing,
)
from asv_bench.history.change_points import Change, changes_in, points_of
from asv_bench.history.histories import Histories
from asv_bench.history.sessions import Ratios, SessionStarts, read_ratios, sessions_of


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """The figures of one machine, and the line that its series run along."""

    name: str
    figures: Sequence[Figure]
    dates: Mapping[str, int]  # when its commits were made, as `dates_of`
    commits: Sequence[Commit]  # what was measured of the line, or labels; oldest first
    off_line: int  # how many were measured and are not on the line
    environments: Sequence[EnvironmentFacts]  # the last one measured is the first
    sessions: SessionStarts
    ratios: Ratios

    @classmethod
    def of(
        cls,
        name: str,
        results: Results,
        histories: Histories,
        complaints: list[str],
        tip: str = "HEAD",
    ) -> MachineHistory:
        """What is stored, along the line of first parents that ends at `tip`."""
        figures = [figure for figure in results.figures if figure.machine == name]
        dates = dates_of(figures)
        line = histories.on_line(dates, tip)
        environments = results.environments_of(name)
        ratios = read_ratios(histories.sessions, name, complaints)
        return cls(name, figures, dates, *line, environments, sessions_of(figures), ratios)

    def changes(self, figures: Sequence[Figure]) -> list[Change]:
        """Where one series in one environment moved, oldest first."""
        return changes_in(points_of(figures, self.commits, self.ratios, self.sessions))


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Every change, largest first; and notes for the reader."""

    found: list[Change]
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
    found: list[Change] = []
    for name in [machine] if machine else sorted(results.machines):
        of_machine = MachineHistory.of(name, results, histories, notes, tip)
        beside, environments = of_machine.off_line, of_machine.environments
        if beside and histories.labels:
            notes.append(f"{name}: {beside} of those measured are no labels of [axis] any more.")
        elif beside:
            notes.append(
                f"{name}: {beside} of the commits measured are not on {tip}'s line of first "
                f"parents and are in no series; --branch names another line."
            )
        if len(environments) > 1:
            listed = "; ".join(differing(one, environments) for one in environments)
            notes.append(
                f"{name} has results of {len(environments)} environments, judged apart: {listed}."
            )
        by_series: dict[tuple[Series, EnvironmentFacts], list[Figure]] = {}
        for figure in of_machine.figures:
            if not patterns or any(text in figure.series.benchmark for text in patterns):
                by_series.setdefault((figure.series, figure.environment), []).append(figure)
        found += [
            change for members in by_series.values() for change in of_machine.changes(members)
        ]
    return StoredChanges(sorted(found, key=lambda change: -abs(change.effect)), notes)


def is_with(
    environment: EnvironmentFacts, python: str, torch: str | None, triton: str | None
) -> bool:
    """Whether figures of an environment were measured with these versions, as far as it says."""
    minor = ".".join(python.split(".")[:2])
    software = {"python": minor, "torch": torch or "none", "triton": triton or "none"}
    stored = dict(environment)
    return all(stored.get(name, version) == version for name, version in software.items())
