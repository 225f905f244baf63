"""Where the histories of one subject are kept, along what they run, and where series begin."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from asv_bench.errors import Refused, require_packages
from asv_bench.git.repository import Commit, Repository, commits_on_line, short
from asv_bench.history.asv_results import (
    EnvironmentFacts,
    Figure,
    Results,
    read_ratios,
    read_results,
    sessions_of,
)
from asv_bench.history.change_points import Change, changes_in, points_of
from asv_bench.measure.software import Software, other_client
from asv_bench.output.record import WORKPLACE, require_writable
from asv_bench.output.stored_json import UnreadableFile, read_stored
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import first_of

OWN = "kvtrail"
CLIENTS = "asv-clients"
"""The folder beside asv's results that keeps what asked servers, each in a file by its hash."""


@dataclass(frozen=True, slots=True)
class Histories:
    """The stored histories of one subject."""

    subject: str  # its name
    folder: Path  # holds asv's results of commits, those of the working tree, sessions and pages
    configured: Path  # holds asv.conf.json
    repository: Path  # has the commits
    labels: tuple[str, ...] = ()
    """In their order, where they are measured in place of commits."""

    @classmethod
    def of_checkout(cls, root: Path) -> Histories:
        """Those of kvtrail's own benchmarks in a checkout."""
        return cls(OWN, root / "reports", root, root)

    @classmethod
    def of_subject(cls, subject: DeclaredSubject, folder: Path | None = None) -> Histories:
        """Those of a subject, by default at a place of its own; kvtrail's own in its checkout.

        Raises Refused where another place is named for kvtrail's own.
        """
        if subject.kept_in is None:
            # asv takes what is relative for a place beside its configuration.
            kept = (folder or WORKPLACE / "subjects" / subject.name).absolute()
            return cls(subject.name, kept, kept, subject.repository, subject.labels)
        if folder is not None:
            raise Refused("--results is for a subject's file; kvtrail's own are kept in reports/.")
        return cls.of_checkout(subject.kept_in)

    @property
    def is_own(self) -> bool:
        return self.configured != self.folder

    @property
    def results(self) -> Path:
        """asv's results directory, of commits or labels."""
        return self.folder / "asv"

    @property
    def sessions(self) -> Path:
        return self.folder / "asv-sessions"

    @property
    def pages(self) -> Path:
        return self.folder / "pages"

    def require_ready(self) -> None:
        """See before measuring that its packages are here and its folders can be written."""
        require_packages("asv", "jinja2")
        folders = ("asv", "asv-worktree", "asv-sessions", CLIENTS, "pages", "html")
        require_writable(*(self.folder / name / "file" for name in folders))

    def read(self, directory: Path | None = None) -> Results:
        """What a results directory, by default `results`, holds of commits, or labels by name."""
        results = read_results(directory or self.results)
        labels = {filed_under(label): label for label in self.labels}
        named = (replace(one, commit=labels.get(one.commit, one.commit)) for one in results.figures)
        return replace(results, figures=tuple(named)) if labels else results

    def on_line(self, dates: Mapping[str, int], tip: str = "HEAD") -> tuple[list[Commit], int]:
        """What a series runs along up to `tip`, and how many of those measured are not on it."""
        if not self.labels:
            return commits_on_line(dates, Repository(self.repository), tip)
        line = [Commit(label) for label in self.labels if label in dates]
        return line, len(dates) - len(line)


def filed_under(label: str) -> str:
    """What asv's results have in place of a commit's hash for a label."""
    return hashlib.sha1(label.encode(), usedforsecurity=False).hexdigest()


class MachineHistory:
    """The figures of one machine, and the line of first parents that its series run along."""

    def __init__(
        self, name: str, results: Results, histories: Histories, notes: list[str], tip: str = "HEAD"
    ) -> None:
        self.name = name
        self.figures = [figure for figure in results.figures if figure.machine == name]
        newest_first = sorted(self.figures, key=lambda figure: -figure.started_ms)
        # The last one measured is the first.
        self.environments = list(dict.fromkeys(figure.environment for figure in newest_first))
        # When its commits were made, in milliseconds since 1970.
        self.dates = {figure.commit: figure.committed_ms for figure in self.figures}
        # What was measured of the line, or labels, oldest first; how many more are not on it.
        self.commits, self.off_line = histories.on_line(self.dates, tip)
        self.ratios = read_ratios(histories.sessions, name, notes)
        self.sessions = sessions_of(self.figures)
        self.beginnings = beginnings(name, self.figures, self.commits, histories.folder)

    def changes(self, figures: Sequence[Figure]) -> list[Change]:
        """Where one series in one environment moved, oldest first."""
        return changes_in(points_of(figures, self.commits, self.ratios, self.sessions))


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
