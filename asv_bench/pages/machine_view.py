"""What the page says of one machine: its commits, its graphs, and what changed lately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from asv_bench.compare.confirmation import Standing
from asv_bench.compare.verdict import Verdict
from asv_bench.git.repository import Commit, GitError, Repository, kind_of
from asv_bench.history.acknowledged import Acknowledgement, reason_for
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
from asv_bench.history.kept_answers import ANSWERS, KeptAnswer, key_of, read_answers
from asv_bench.history.sessions import SessionStarts, read_ratios, sessions_of
from asv_bench.pages.graph import Graph, Line, MarkedChange, MarkedVerdict, order_of
from asv_bench.pages.records import StoredVerdict

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
class ChangedCommit:
    """A commit at which figures moved, and the graphs with their changes there."""

    commit: Commit
    changes: tuple[tuple[Graph, MarkedChange], ...]


@dataclass(frozen=True, slots=True)
class MachineView:
    """Everything that is stored of one machine."""

    name: str
    facts: tuple[tuple[str, str], ...]
    # The axis: what was measured of the line of first parents, or labels; oldest first.
    commits: tuple[Commit, ...]
    dates: Mapping[str, int]  # when commits were made, in milliseconds since 1970, by full hash
    # How many commits of the line are newer, by full hash; empty where nobody can tell.
    behind: Mapping[str, int]
    sessions: SessionStarts  # those of its figures
    # The last one measured is the first; `environment_names` says what sets each apart.
    environments: tuple[EnvironmentFacts, ...]
    graphs: tuple[Graph, ...]
    off_line: int = 0  # commits that were measured and are not on the line
    is_here: bool = False

    @property
    def title(self) -> str:
        """The hardware that people know it by."""
        facts = dict(self.facts)
        return facts.get("GPU") or facts.get("CPU") or self.name

    @property
    def environment_names(self) -> list[str]:
        """What sets each environment apart; of a single one, nothing."""
        if len(self.environments) < 2:
            return [""] * len(self.environments)
        return [differing(one, self.environments) for one in self.environments]

    @property
    def changes(self) -> list[tuple[Graph, MarkedChange]]:
        """All changes with their graphs, those at the newest commits first."""
        found = [(graph, change) for graph in self.graphs for change in graph.changes]
        return sorted(found, key=lambda one: (-one[1].place, -abs(one[1].change.effect)))

    def changed_commits(self, *, lately: bool) -> list[ChangedCommit]:
        """The commits with changes, those that are news or the others, newest first."""
        return [
            ChangedCommit(self.commits[place], tuple(found))
            for place, found in groupby(self.changes, key=lambda one: one[1].place)
            if self.is_news(place) == lately
        ]

    def is_news(self, place: int) -> bool:
        """Whether a place is among the last commits measured."""
        return place >= len(self.commits) - LATELY

    @property
    def news(self) -> tuple[str, str]:
        """Whether anything got worse lately, as a tone, and in a sentence.

        The tone is "bad", "open", "good", or "quiet" where nothing can be said."""
        lately = min(LATELY, len(self.commits))
        if lately < 2:
            return "quiet", "Too little was measured to say anything of changes."
        where = f"in the last {lately} {kind_of(self.commits[-1].hash)}s measured"
        bad = [one for _, one in self.changes if one.is_bad_news and self.is_news(one.place)]
        confirmed = sum(one.state == "confirmed regression" for one in bad)
        doubtful = len(bad) - confirmed
        if confirmed:
            more = f"; {doubtful} more suspected" if doubtful else ""
            return "bad", f"{_counted(confirmed, 'regression')} confirmed {where}{more}."
        if doubtful:
            return "open", (
                f"{_counted(doubtful, 'change')} for the worse {where}, not confirmed by comparing."
            )
        return "good", f"Nothing got worse {where}."

    @property
    def failed(self) -> list[Graph]:
        """The graphs whose newest figure is none, as the benchmark failed."""
        return [one for one in self.graphs if one.lines and one.lines[-1].latest[1].failed]

    @property
    def newest_ms(self) -> int:
        """When something was measured last, in milliseconds since 1970."""
        figures = [one.draft for one in self.graphs if one.draft]
        figures += [one for graph in self.graphs for x in graph.lines for one in x.figures.values()]
        return max((figure.started_ms for figure in figures), default=0)


class Collector:
    """Makes the view of a machine out of what is stored."""

    def __init__(
        self,
        name: str,
        histories: Histories,
        committed: Results,
        worktree: Results,
        verdicts: Sequence[StoredVerdict],
        acknowledged: Sequence[Acknowledgement],
        complaints: list[str],
    ) -> None:
        self._name, self._histories, self._acknowledged = name, histories, acknowledged
        self._figures = [one for one in committed.figures if one.machine == name]
        self._drafts = _newest_drafts([one for one in worktree.figures if one.machine == name])
        self._verdicts = [one for one in verdicts if one.machine == name]
        self._dates = dates_of(self._figures)
        self._commits, self._off_line = histories.on_line(self._dates)
        self._places = {commit.hash: place for place, commit in enumerate(self._commits)}
        self._environments = committed.environments_of(name)
        self._facts = {
            **worktree.machines.get(name, {}),
            **committed.machines.get(name, {}),
            **dict(self._environments[0] if self._environments else ()),
        }
        self._sessions = sessions_of(self._figures)
        self._ratios = read_ratios(histories.sessions, name, complaints)
        self._answers = read_answers(histories.folder / ANSWERS, name, complaints)
        self._line = _line(histories)
        # Of all commits of the line, or labels.
        self._order = {one: place for place, one in enumerate(self._line or self._places)}

    def view(self, *, is_here: bool) -> MachineView:
        """All of it."""
        series: dict[Series, list[Figure]] = {}
        for figure in [*self._figures, *self._drafts]:
            series.setdefault(figure.series, []).append(figure)
        known = {key: value for key, value in self._facts.items() if value != "none"}
        return MachineView(
            name=self._name,
            facts=tuple((label, known[key]) for key, label in _FACTS.items() if key in known),
            commits=tuple(self._commits),
            dates=self._dates,
            behind={} if self._histories.labels else _behind(self._commits, self._line),
            sessions=self._sessions,
            environments=tuple(self._environments),
            graphs=tuple(sorted(map(self._graph, series.values()), key=order_of)),
            off_line=self._off_line,
            is_here=is_here,
        )

    def _graph(self, figures: Sequence[Figure]) -> Graph:
        """The graph of one series."""
        one, places = figures[0], self._places
        lines: list[Line] = []
        changes: list[MarkedChange] = []
        # The environment that was measured last comes first here, and last on the graph.
        for number, environment in reversed(list(enumerate(self._environments))):
            members = [figure for figure in figures if figure.environment == environment]
            by_place = {places[one.commit]: one for one in members if one.commit in places}
            if not by_place:
                continue
            lines.append(Line(number, dict(sorted(by_place.items()))))
            found = changes_in(points_of(members, self._commits, self._ratios, self._sessions))
            changes += (
                MarkedChange(
                    places[change.commit.hash],
                    change,
                    self._answer(change, found),
                    reason_for(change, self._acknowledged),
                )
                for change in found
            )
        graph = Graph(one.series, one.unit, one.better, tuple(lines))
        return replace(
            graph,
            changes=tuple(sorted(changes, key=lambda change: change.place)),
            verdicts=tuple(self._marked(graph.key)),
            draft=next((draft for draft in self._drafts if draft.series == one.series), None),
        )

    def _answer(self, change: Change, found: Sequence[Change]) -> KeptAnswer | None:
        """What comparing said of a change, whichever command compared; `found` are all of a line.

        A comparison confirms it within the range in which it lies, or around that range where no
        other change is in between.
        """
        kept = self._answers.get(key_of(change))
        standing = Standing.REGRESSION if change.is_worse else Standing.IMPROVEMENT
        if kept is not None and kept.standing is standing:
            return kept
        wanted = Verdict.SLOWER if change.is_worse else Verdict.FASTER
        ranges = {one: (self._order[one.since.hash], self._order[one.until.hash]) for one in found}
        since, until = ranges.pop(change)
        key = Graph(change.series, change.unit, change.better).key
        for one in reversed(self._verdicts):
            base, head = self._order.get(one.base), self._order.get(one.head)
            if base is None or head is None or (one.key, one.verdict) != (key, wanted):
                continue
            is_within = since <= base < head <= until
            is_around = base <= since and until <= head
            is_alone = not any(base < last and first < head for first, last in ranges.values())
            if (is_within or (is_around and is_alone)) and one.is_of(change.environment):
                return KeptAnswer(standing, one.effect, one.interval, one.pairs, "")
        return kept

    def _marked(self, key: str) -> Iterator[MarkedVerdict]:
        """The newest verdict on each two commits of the line."""
        newest = {
            (one.base, one.head): one
            for one in self._verdicts
            if one.key == key and {one.base, one.head} <= self._places.keys()
        }
        for (base, head), one in newest.items():
            yield MarkedVerdict(self._places[head], base, one.verdict, one.sentence)


def _newest_drafts(figures: Sequence[Figure]) -> list[Figure]:
    """Those of the working tree that was measured last."""
    if not figures:
        return []
    newest = max(figures, key=lambda figure: figure.started_ms)
    alike = (newest.commit, newest.environment)
    return [one for one in figures if (one.commit, one.environment) == alike]


def _line(histories: Histories) -> Sequence[str]:
    """All labels, or all commits of the checked-out line, the oldest first; empty without one."""
    if histories.labels:
        return histories.labels
    try:
        return Repository(histories.repository).first_parents("HEAD")
    except GitError:
        return []


def _behind(commits: Sequence[Commit], line: Sequence[str]) -> dict[str, int]:
    """How many commits of the checked-out line are newer than each."""
    newer = {commit: number for number, commit in enumerate(reversed(line))}
    return {commit.hash: newer[commit.hash] for commit in commits if commit.hash in newer}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
