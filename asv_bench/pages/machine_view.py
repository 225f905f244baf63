"""What the page says of one machine: its commits, its graphs, and what changed lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from asv_bench.compare.confirmation import Standing
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import Commit, GitError, Repository, kind_of
from asv_bench.history.asv_results import Figure, Results, Series, differing, read_results
from asv_bench.history.change_points import Change
from asv_bench.history.estimate import counted
from asv_bench.history.histories import Histories
from asv_bench.history.standing import (
    ANSWERS,
    Acknowledgement,
    AnswerKey,
    JudgedChange,
    key_of,
    read_acknowledged,
    read_answers,
    reason_for,
)
from asv_bench.history.stored_changes import MachineHistory
from asv_bench.pages.graph import Graph, Line, order_of
from asv_bench.pages.records import StoredRecord, StoredVerdict, read_records

LATELY = 20
"""Changes among so many of the newest commits that were measured are news."""

_FACTS = {
    "gpu": "GPU",
    "driver": "driver",
    "cpu": "CPU",
    "num_cpu": "cores",
    "ram": "memory",
    "os": "system",
    "python": "Python",
    "torch": "torch",
    "triton": "Triton",
}


@dataclass(frozen=True, slots=True)
class MachineView:
    """Everything that is stored of one machine; places are those of its commits."""

    stored: MachineHistory
    facts: tuple[tuple[str, str], ...]
    # How many commits of the line are newer, by full hash; empty where nobody can tell.
    behind: Mapping[str, int]
    graphs: tuple[Graph, ...]
    is_here: bool = False

    @property
    def title(self) -> str:
        """The hardware that people know it by."""
        facts = dict(self.facts)
        return facts.get("GPU") or facts.get("CPU") or self.stored.name

    @property
    def places(self) -> dict[str, int]:
        """Where its commits stand, by full hash, or label."""
        return {commit.hash: place for place, commit in enumerate(self.stored.commits)}

    @property
    def environment_names(self) -> list[str]:
        """What sets each environment apart; of a single one, nothing."""
        environments = self.stored.environments
        return [differing(one, environments) for one in environments]

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, Graph]]]]:
        """The graphs with their numbers, by what is measured."""
        grouped = groupby(enumerate(self.graphs), key=lambda one: one[1].group)
        return [(name, list(graphs)) for name, graphs in grouped]

    @property
    def changes(self) -> list[tuple[Graph, JudgedChange]]:
        """All changes with their graphs, those at the newest commits first."""
        places = self.places

        def order(one: tuple[Graph, JudgedChange]) -> tuple[int, float]:
            return -places[one[1].change.commit.hash], -abs(one[1].change.effect)

        return sorted(((graph, one) for graph in self.graphs for one in graph.changes), key=order)

    def changed_commits(
        self, *, lately: bool
    ) -> list[tuple[Commit, list[tuple[Graph, JudgedChange]]]]:
        """The commits at which figures moved, those that are news or the others, newest first."""
        by_commit = groupby(self.changes, key=lambda one: one[1].change.commit)
        return [
            (commit, list(found)) for commit, found in by_commit if self.is_news(commit) == lately
        ]

    def is_news(self, commit: Commit) -> bool:
        """Whether a commit is among the last ones measured."""
        return commit in self.stored.commits[-LATELY:]

    def newest_change(self, graph: Graph) -> JudgedChange | None:
        """The newest change of a graph, where it is news."""
        newest = graph.changes[-1] if graph.changes else None
        return newest if newest and self.is_news(newest.change.commit) else None

    @property
    def news(self) -> tuple[str, str]:
        """Whether anything got worse lately, as a tone, and in a sentence.

        The tone is "bad", "open", "good", or "quiet" where nothing can be said."""
        lately = min(LATELY, len(self.stored.commits))
        if lately < 2:
            return "quiet", "Too little was measured to say anything of changes."
        where = f"in the last {lately} {kind_of(self.stored.commits[-1].hash)}s measured"
        bad = [
            one.standing is Standing.REGRESSION
            for _, one in self.changes
            if one.is_bad_news and self.is_news(one.change.commit)
        ]
        confirmed, doubtful = bad.count(True), bad.count(False)
        if confirmed:
            more = f"; {doubtful} more suspected" if doubtful else ""
            return "bad", f"{counted(confirmed, 'regression')} confirmed {where}{more}."
        if doubtful:
            return "open", (
                f"{counted(doubtful, 'change')} for the worse {where}, not confirmed by comparing."
            )
        return "good", f"Nothing got worse {where}."

    def measured(self, graph: Graph) -> str:
        """At which commit a graph was measured last, or how long ago if others were since."""
        if graph.newest is None:
            return ""
        commits = self.stored.commits
        place = graph.lines[-1].last_place
        if not self.is_stale(graph):
            return commits[place].short
        ago = self.behind.get(commits[place].hash, len(commits) - 1 - place)
        return f"last measured {counted(ago, kind_of(commits[place].hash))} ago"

    def is_stale(self, graph: Graph) -> bool:
        """Whether other commits were measured since a graph was."""
        last = len(self.stored.commits) - 1
        return graph.newest is not None and graph.lines[-1].last_place < last

    @property
    def failed(self) -> list[Graph]:
        """The graphs whose newest figure is none, as the benchmark failed."""
        return [one for one in self.graphs if one.newest is not None and one.newest.failed]

    @property
    def newest_ms(self) -> int:
        """When something was measured last, in milliseconds since 1970."""
        figures = [one.draft for one in self.graphs if one.draft]
        figures += [one for graph in self.graphs for x in graph.lines for one in x.figures.values()]
        return max((figure.started_ms for figure in figures), default=0)


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Everything that the page of a subject is made of."""

    histories: Histories
    committed: Results
    worktree: Results
    records: Mapping[Path, StoredRecord]
    acknowledged: Sequence[Acknowledgement]
    line: Sequence[str]  # all labels, or all commits of the checked-out line; oldest first
    complaints: list[str]

    @classmethod
    def of(cls, histories: Histories) -> StoredPage:
        """What is stored of a subject."""
        committed = histories.read()
        worktree = histories.named(read_results(histories.of_worktree))
        line = histories.labels
        if not line:
            with suppress(GitError):
                line = tuple(Repository(histories.repository).first_parents("HEAD"))
        return cls(
            histories,
            committed,
            worktree,
            read_records(histories),
            read_acknowledged(histories.folder),
            line,
            [*committed.complaints, *worktree.complaints],
        )

    @property
    def machines(self) -> list[str]:
        """Their names."""
        return list({**self.committed.machines, **self.worktree.machines})

    def view(self, name: str, *, is_here: bool) -> MachineView:
        """The view of a machine."""
        stored = MachineHistory.of(name, self.committed, self.histories, self.complaints)
        places = {commit.hash: place for place, commit in enumerate(stored.commits)}
        said = _Said(
            read_answers(self.histories.folder / ANSWERS, name, self.complaints),
            [
                one
                for record in self.records.values()
                for one in record.verdicts
                if record.machine.name == name
            ],
            {one: place for place, one in enumerate(self.line or places)},
        )
        drafts = _newest_drafts([one for one in self.worktree.figures if one.machine == name])
        series: dict[Series, list[Figure]] = {}
        for figure in [*stored.figures, *drafts.values()]:
            series.setdefault(figure.series, []).append(figure)
        graphs = [self._graph(of, stored, said, drafts, places) for of in series.values()]
        facts = {
            **self.worktree.machines.get(name, {}),
            **self.committed.machines.get(name, {}),
            **dict(stored.environments[0] if stored.environments else ()),
        }
        known = {key: facts[key] for key in _FACTS if facts.get(key, "none") != "none"}
        newer = {commit: number for number, commit in enumerate(reversed(self.line))}
        return MachineView(
            stored,
            tuple((_FACTS[key], value) for key, value in known.items()),
            {} if self.histories.labels else {one: newer[one] for one in places if one in newer},
            tuple(sorted(graphs, key=order_of)),
            is_here,
        )

    def _graph(
        self,
        figures: Sequence[Figure],
        stored: MachineHistory,
        said: _Said,
        drafts: Mapping[Series, Figure],
        places: Mapping[str, int],
    ) -> Graph:
        """The graph of one series."""
        lines: list[Line] = []
        changes: list[JudgedChange] = []
        # The environment that was measured last comes first here, and last on the graph.
        for number, environment in reversed(list(enumerate(stored.environments))):
            members = [figure for figure in figures if figure.environment == environment]
            by_place = {places[one.commit]: one for one in members if one.commit in places}
            if by_place:
                lines.append(Line(number, dict(sorted(by_place.items()))))
                found = stored.changes(members)
                changes += (
                    JudgedChange(one, said.of(one, found), reason_for(one, self.acknowledged))
                    for one in found
                )
        series = figures[0].series
        return Graph(
            series,
            figures[0].unit,
            figures[0].better,
            tuple(lines),
            tuple(sorted(changes, key=lambda one: places[one.change.commit.hash])),
            said.on_line(series, places),
            drafts.get(series),
        )


@dataclass(frozen=True, slots=True)
class _Said:
    """What comparing said of the changes of a machine, whichever command compared."""

    kept: Mapping[AnswerKey, Comparison]  # by `changes`
    verdicts: Sequence[StoredVerdict]  # by other commands, oldest first
    order: Mapping[str, int]  # of all commits of the line, or labels

    def of(self, change: Change, found: Sequence[Change]) -> Comparison | None:
        """What was said of a change; `found` are all of its line.

        A comparison confirms it within the range in which it lies, or around that range where no
        other change is in between.
        """
        kept = self.kept.get(key_of(change))
        standing = Standing.REGRESSION if change.is_worse else Standing.IMPROVEMENT
        if Standing.of(kept, is_worse=change.is_worse) is standing:
            return kept
        wanted = Verdict.SLOWER if change.is_worse else Verdict.FASTER
        ranges = {one: (self.order[one.since.hash], self.order[one.until.hash]) for one in found}
        since, until = ranges.pop(change)
        for one in reversed(self.verdicts):
            base, head = self.order.get(one.said.base), self.order.get(one.said.head)
            is_about = (one.key, one.said.verdict) == (change.series.name, wanted)
            if base is None or head is None or not is_about:
                continue
            is_within = since <= base < head <= until
            is_around = base <= since and until <= head
            is_alone = not any(base < last and first < head for first, last in ranges.values())
            if (is_within or (is_around and is_alone)) and one.is_of(change.environment):
                return one.said
        return kept

    def on_line(self, series: Series, places: Mapping[str, int]) -> tuple[StoredVerdict, ...]:
        """The newest verdict on each two commits that were measured."""
        newest = {
            (one.said.base, one.said.head): one
            for one in self.verdicts
            if one.key == series.name and {one.said.base, one.said.head} <= places.keys()
        }
        return tuple(newest.values())


def _newest_drafts(figures: Sequence[Figure]) -> dict[Series, Figure]:
    """Those of the working tree that was measured last."""
    newest = max(figures, key=lambda figure: figure.started_ms, default=None)
    if newest is None:
        return {}
    alike = (newest.commit, newest.environment)
    return {one.series: one for one in figures if (one.commit, one.environment) == alike}
