"""What the page says of one machine: its commits, its graphs, and what changed lately."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from asv_bench.compare.checks import CheckAnswer, checks_in, in_words
from asv_bench.compare.verdict import Comparison, Standing, Verdict
from asv_bench.git.repository import Commit, GitError, Repository, kind_of, short
from asv_bench.history.asv_results import Better, Figure, Series, differing
from asv_bench.history.change_points import LEAST_EFFECT, Change
from asv_bench.history.histories import OWN, Histories, MachineHistory
from asv_bench.history.standing import (
    ANSWERS,
    Acknowledgement,
    AnswerKey,
    JudgedChange,
    is_with,
    read_acknowledged,
    read_answers,
    reason_for,
)
from asv_bench.output.figure_rows import words_of
from asv_bench.output.record import RUNS
from asv_bench.output.stored_json import Text, UnreadableFile, read_stored
from asv_bench.output.table import percentage
from asv_bench.words import counted

LATELY = 20
"""Changes among so many of the newest commits that were measured are news."""
Command = Literal["compare", "bisect", "fixed"]
"""Those whose records have verdicts."""
MOST = 200
"""Records of each command that are read, the newest."""


class _Machine(msgspec.Struct, frozen=True):
    name: Text
    python: str | None = None
    torch: str | None = None
    triton: str | None = None


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What a command said of one benchmark of two commits."""

    command: str
    machine: _Machine
    said: Comparison
    record: Path
    checks: Sequence[CheckAnswer]  # of the same commits

    @property
    def key(self) -> str:
        """The benchmark as addresses of the page have it: without the quotes of texts."""
        return re.sub("['\"]", "", self.said.benchmark)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        said = self.said
        effect = percentage(said.effect or 0.0, 2, signed=True)
        pairs = f"{effect} against {short(said.base)} in {said.pairs_used} pairs"
        words = [f"{self.command}: {said.word}", pairs, in_words(self.checks)]
        others = [one.sentence for one in self.checks if one.verdict is not Verdict.SAME]
        return "; ".join([", ".join(filter(None, words)), *others])


class _Record(msgspec.Struct):
    command: Command
    started: Text  # when, as ISO writes it
    machine: _Machine
    settings: dict[str, Any]
    results: dict[str, Any]


def read_verdicts(histories: Histories) -> dict[Path, list[StoredVerdict]]:
    """The verdicts on the subject of some histories by their records, oldest first.

    Records are where commands leave them, or beside the histories; what is none is passed over.
    """
    runs = histories.folder / "runs" if histories.is_own else RUNS
    folders = (runs, histories.folder, histories.folder / "verdicts")
    found: list[tuple[str, Path, list[StoredVerdict]]] = []
    for command in get_args(Command):
        paths = {path.resolve() for one in folders for path in one.glob(f"{command}-*.json")}
        for path in sorted(paths, key=lambda path: path.stat().st_mtime)[-MOST:]:
            # Other files may be called so; whoever wants to know reads them with their own command.
            with suppress(UnreadableFile):
                started, verdicts = read_stored(
                    path, "a record", partial(_verdicts, histories, path)
                )
                found.append((started, path, verdicts))
    return {path: verdicts for _, path, verdicts in sorted(found, key=lambda one: one[0])}


def _verdicts(
    histories: Histories, path: Path, content: dict[str, Any]
) -> tuple[str, list[StoredVerdict]]:
    """When a record began, and what it says; ValueError where it is of another subject."""
    record = msgspec.convert(content, _Record)
    # Records from before there were subjects name none, and are of kvtrail.
    subject = record.settings.get("subject") or {"kind": OWN}
    is_own = subject.get("kind") == OWN
    if is_own != histories.is_own or not (is_own or subject.get("name") == histories.subject):
        raise ValueError("it is of another subject")
    finding = record.results.get("finding") or {}
    raw = [*record.results.get("comparisons", ()), *finding.get("confirmations", ())]
    compared = msgspec.convert(raw, list[Comparison])
    if record.command == "fixed" or "heads" in record.settings:
        # Behind the name of a metric stands which two of several are compared.
        compared = [replace(one, benchmark=one.benchmark.rpartition(" ")[0]) for one in compared]
    return record.started, [
        StoredVerdict(record.command, record.machine, one, path, checks_in(record.results, ends))
        for one in compared
        for ends in [(one.base, one.head)]
        if one.effect is not None
    ]


@dataclass(frozen=True, slots=True)
class Graph:
    """One series of one machine."""

    series: Series
    group: str  # what is measured, in words
    title: str  # which figure of it
    unit: str
    better: Better
    # By the places of environments among those of the machine, the last measured at the end:
    # figures by the places of their commits, ascending.
    lines: Mapping[int, dict[int, Figure]]
    changes: Sequence[JudgedChange]  # in the order of places
    verdicts: Sequence[StoredVerdict]  # the newest on each two commits that were measured

    @property
    def newest(self) -> tuple[int, Figure] | None:
        """What was measured last, with its place; None where no commit of the line was."""
        return [*[*self.lines.values()][-1].items()][-1] if self.lines else None

    def is_taken_back(self, change: JudgedChange) -> bool:
        """Whether a later change of its line, no less sure, ended at the level before it."""
        sign = -1 if self.better == "higher" else 1
        return any(
            sign * (one.change.after_value / change.change.before_value - 1) <= LEAST_EFFECT
            for one in self.changes[self.changes.index(change) + 1 :]
            if one.change.environment == change.change.environment
            if Standing.REGRESSION is not change.standing or one.standing is Standing.IMPROVEMENT
        )


@dataclass(frozen=True)
class MachineView:
    """Everything that is stored of one machine; places are those of its commits."""

    stored: MachineHistory
    title: str  # the hardware that people know it by
    order: Mapping[str, int]  # of all commits of the line by full hash, or of labels
    answers: Mapping[AnswerKey, Comparison]  # to changes, by `changes`
    verdicts: Sequence[StoredVerdict]  # by other commands, oldest first
    acknowledged: Sequence[Acknowledgement]

    @property
    def places(self) -> dict[str, int]:
        """Where its commits stand, by full hash, or label."""
        return {commit.hash: place for place, commit in enumerate(self.stored.commits)}

    @property
    def environments(self) -> list[str]:
        """What sets each environment apart; of a single one, nothing."""
        return [differing(one, self.stored.environments) for one in self.stored.environments]

    @cached_property
    def graphs(self) -> list[Graph]:
        """A graph for each series, in the order of their benchmarks."""
        figures: dict[Series, list[Figure]] = {}
        for figure in sorted(self.stored.figures, key=lambda one: one.series.benchmark):
            figures.setdefault(figure.series, []).append(figure)
        return [self._graph(series, members) for series, members in figures.items()]

    @property
    def changed_commits(self) -> list[tuple[Commit, list[tuple[Graph, JudgedChange]]]]:
        """The commits at which figures moved, newest first, with their changes, largest first."""
        found = [(graph, one) for graph in self.graphs for one in graph.changes]
        found.sort(
            key=lambda one: (-self.order[one[1].change.commit.hash], -abs(one[1].change.effect))
        )
        by_commit = groupby(found, key=lambda one: one[1].change.commit)
        return [(commit, [*moved]) for commit, moved in by_commit]

    def is_news(self, commit: Commit) -> bool:
        """Whether a commit is among the last ones measured."""
        return commit in self.stored.commits[-LATELY:]

    @property
    def bad_news(self) -> list[tuple[Graph, JudgedChange]]:
        """What got worse lately, in its graph."""
        changes = ((graph, one) for graph in self.graphs for one in graph.changes)
        return [
            (at, one) for at, one in changes if one.is_bad_news and self.is_news(one.change.commit)
        ]

    @property
    def news(self) -> tuple[str, str]:
        """Whether anything got worse lately, as a tone, and in a sentence.

        The tone is "bad", "open", "good", or "quiet" where nothing can be said."""
        lately = len(self.stored.commits[-LATELY:])
        if lately < 2:
            return "quiet", "Too little was measured to say anything of changes."
        where = f"in the last {lately} {kind_of(self.stored.commits[-1].hash)}s measured"
        bad = [one.standing is Standing.REGRESSION for _, one in self.bad_news]
        if not bad:
            return "good", f"Nothing got worse {where}."
        confirmed, suspected = bad.count(True), bad.count(False)
        parts = [f"{counted(confirmed, 'regression')} confirmed"] if confirmed else []
        parts += [f"{counted(suspected, 'change')} for the worse suspected"] if suspected else []
        return "bad" if confirmed else "open", f"{' and '.join(parts)} {where}."

    def ago(self, commit: Commit) -> str:
        """How many commits, or labels, are newer than one, in words."""
        newer, kind = len(self.order) - 1 - self.order[commit.hash], kind_of(commit.hash)
        return f"{counted(newer, kind)} ago" if newer else f"the newest {kind}"

    def told_of(self, change: Change) -> list[StoredVerdict]:
        """What commands said of commits between which a change lies, the newest last."""
        order, at = self.order, self.order[change.commit.hash]
        return [
            one
            for one in self.verdicts
            if one.key == change.series.name
            if order.get(one.said.base, at) < at <= order.get(one.said.head, -1)
        ]

    @property
    def other_results(self) -> list[CheckAnswer]:
        """What the newest checks of two commits found to differ, the newest last."""
        checks = [check for one in self.verdicts for check in one.checks]
        newest = {(one.check, one.base, one.head): one for one in checks}
        bad = Verdict.DIFFERS, Verdict.UNSTABLE
        return [one for one in newest.values() if one.verdict in bad]

    @property
    def newest_ms(self) -> int:
        """When something was measured last, in milliseconds since 1970."""
        return max((figure.started_ms for figure in self.stored.figures), default=0)

    def _graph(self, series: Series, figures: Sequence[Figure]) -> Graph:
        places = self.places
        lines: dict[int, dict[int, Figure]] = {}
        changes: list[JudgedChange] = []
        # The environment that was measured last comes first here, and last on the graph.
        for number, environment in reversed(list(enumerate(self.stored.environments))):
            members = [figure for figure in figures if figure.environment == environment]
            by_place = {places[one.commit]: one for one in members if one.commit in places}
            if by_place:
                lines[number] = dict(sorted(by_place.items()))
                found = self.stored.changes(members)
                changes += (
                    JudgedChange(one, self._answer(one, found), reason_for(one, self.acknowledged))
                    for one in found
                )
        group, name, label = words_of(figures[0])
        newest = {
            (one.said.base, one.said.head): one
            for one in self.verdicts
            if one.key == series.name and {one.said.base, one.said.head} <= places.keys()
        }
        return Graph(
            series,
            group,
            f"{name}, {label}" if label else name,
            figures[0].unit,
            figures[0].better,
            lines,
            sorted(changes, key=lambda one: places[one.change.commit.hash]),
            list(newest.values()),
        )

    def _answer(self, change: Change, found: Sequence[Change]) -> Comparison | None:
        """What comparing said of a change; `found` are all of its line.

        A comparison confirms it within the range in which it lies, or around that range where no
        other change is in between.
        """
        kept = self.answers.get((change.series, change.environment, change.commit.hash))
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
            ran = one.machine
            is_there = ran.python is None or is_with(
                change.environment, ran.python, ran.torch, ran.triton
            )
            if is_there and (is_within or (is_around and is_alone)):
                return one.said
        return kept


def machine_views(
    histories: Histories, verdicts: Sequence[StoredVerdict], complaints: list[str]
) -> list[MachineView]:
    """The view of each machine that has figures; what is left out is said in `complaints`."""
    results = histories.read()
    complaints += results.complaints
    line: Sequence[str] = histories.labels
    if not line:
        with suppress(GitError):
            line = Repository(histories.repository).first_parents("HEAD")
    views: list[MachineView] = []
    for name, facts in results.machines.items():
        stored = MachineHistory(name, results, histories, complaints)
        known = {**facts, **dict(stored.environments[0] if stored.environments else ())}
        hardware = [known[key] for key in ("gpu", "cpu") if known.get(key, "none") != "none"]
        view = MachineView(
            stored,
            hardware[0] if hardware else name,
            {one: n for n, one in enumerate(line or [one.hash for one in stored.commits])},
            read_answers(histories.folder / ANSWERS, name, complaints),
            [one for one in verdicts if one.machine.name == name],
            read_acknowledged(histories.folder),
        )
        if view.graphs:
            views.append(view)
    return views
