"""Searches for what made a benchmark slower, from their first process to their record."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from asv_bench.bisect import account
from asv_bench.bisect.file_search import FileFinding, FileSearch, FileTry
from asv_bench.bisect.finding import Direction, Finding, Outcome, Probe, SearchPlan, Stage
from asv_bench.bisect.search import Search
from asv_bench.compare.comparison import Headway
from asv_bench.compare.verdict import Comparison
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.git.trees import FileChange, PartCommits, changes_between
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import Progress, print_sentences, print_table
from asv_bench.output.issue_text import described, lasting_names, repeating
from asv_bench.output.markdown import inline
from asv_bench.output.table import percentage
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import processes_apart

BY_OUTCOME = {
    Outcome.FOUND: ExitCode.REGRESSION,
    Outcome.NONE: ExitCode.GOOD,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
DOING = {
    Stage.GATE: "comparing the ends",
    Stage.SEARCH: "searching",
    Stage.CONFIRMATION: "confirming",
}


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The commits, or labels, after a good end, oldest first, up to a bad one."""

    words: tuple[str, str]  # what the user calls the two ends
    good: str
    commits: Sequence[Commit]

    @property
    def hashes(self) -> list[str]:
        return [commit.hash for commit in self.commits]

    def to_json(self) -> dict[str, Any]:
        """The range as JSON-ready values."""
        return {"good": self.good, "commits": [commit.to_json() for commit in self.commits]}

    def sentence(self, what: str) -> str:
        """That the range is bisected for something."""
        count, kind = len(self.commits), kind_of(self.good)
        first, last = self.commits[0].short, self.commits[-1].short
        return f"bisecting {count} {kind}s, {first} to {last}, for {what}"

    def on_page(self) -> dict[str, Any]:
        """The range and the names of its ends, as `Judging._issue` takes them."""
        (good, bad), last, base = self.words, self.commits[-1], short(self.good)
        after = f"{len(self.commits)} {kind_of(self.good)}s after **{inline(base)}**"
        names = {good: (base,), bad: (last.short,)}
        return {"commits": f"{after}, up to {described(last)}", "names": names}


class Searching(Judging):
    """One search for what made a benchmark slower, or faster.

    `among` says what is searched, for the record.
    """

    finding: Finding | FileFinding | None = None
    _of_reach = " That is between the ends: naming what made it takes several times as many."

    def __init__(
        self,
        subject: DeclaredSubject,
        among: Mapping[str, Any],
        direction: Direction,
        plan: SearchPlan,
    ) -> None:
        self._metric, *self._controls = subject.metrics
        self._benchmark = self._metric.name
        settings = {
            **among,
            "benchmark": self._benchmark,
            "direction": str(direction),
            "plan": plan.to_json(),
        }
        super().__init__("bisect", settings, subject)
        self._direction = direction
        self._plan, self._plan_of_rounds = plan, plan.comparison
        self._pool: Sequence[float] = ()

    def _is_clear(self) -> bool:
        return self.finding is not None and self.finding.outcome is not Outcome.INCONCLUSIVE

    def begin(self) -> list[str]:
        self._pool = self._noise.of([self._benchmark]).get(self._benchmark, [])
        return []

    def results(self) -> dict[str, Any]:
        if self.finding is None:
            return {"finding": None}
        found = {"outcome": self._direction} if self.finding.outcome is Outcome.FOUND else {}
        return {"finding": self.finding.to_json(), **found}


class Bisecting(Searching):
    """One bisection from its first process to its record."""

    finding: Finding | None

    def __init__(
        self,
        subject: DeclaredSubject,
        among: CommitRange,
        direction: Direction,
        plan: SearchPlan,
        *,
        # Those that name the subject, for the command that says why.
        options: Sequence[str] = (),
        is_same: bool = False,  # whether what is measured is the same at both ends
    ) -> None:
        super().__init__(subject, among.to_json(), direction, plan)
        self._options = options
        self._is_same = is_same
        self._why: list[str] = []
        self._range, self._good = among, among.good
        self._by_hash = {commit.hash: commit for commit in among.commits}
        self._probes: list[Probe] = []

    def known(self) -> ExitCode | None:
        """See `Session`: what is measured is the same at both ends."""
        if not self._is_same:
            return None
        bad = self._range.commits[-1].hash
        gate = Comparison.of_same(self._benchmark, self._good, bad)
        asked = self._direction, self._benchmark, self._good, bad
        self.finding = Finding(Outcome.NONE, *asked, reason=gate.reason, gate=gate)
        return ExitCode.GOOD

    def names(self) -> Sequence[str]:
        return [self._good, *self._range.hashes]

    def begin(self) -> list[str]:
        what = self._range.sentence(self._direction.phrase)
        if (tolerance := self._metric.tolerance) is not None:
            what += f"; 1 % of {self._benchmark} stands for its tolerance, {tolerance:g}"
        return [what, *super().begin()]

    def measure(self, source: RoundSource) -> ExitCode:
        most, done = self._plan.comparison.cap, 0
        doing: tuple[Stage, str] = Stage.GATE, ""

        with ExitStack() as bars:
            warming = "warming up (each end once), then measuring"
            bar = bars.enter_context(Progress(self._console, warming, most, "pairs at most"))

            def on_probe(probe: Probe) -> None:
                nonlocal bar, doing, done
                self._probes.append(probe)
                self._record.samples.append(probe.to_json())
                now = probe.stage, probe.commit if probe.stage is Stage.CONFIRMATION else ""
                if now != doing:
                    doing, done = now, 0
                    bars.close()
                    counted = (None, "pairs") if probe.guess else (most, "pairs at most")
                    bar = bars.enter_context(Progress(self._console, DOING[probe.stage], *counted))
                done += 1
                print_sentences(self._console, self._reaches([probe.pair] if probe.pair else []))
                if probe.guess is not None:
                    line = account.probe_line(len(self._probes), probe, self._by_hash)
                    print_sentences(self._console, [line])
                # A kept pair took no time, and says nothing of the time that is left.
                if len(self._probes) > self._log.restored:
                    total = done + probe.guess.pairs_left if probe.guess else None
                    bar.show(done, DOING[probe.stage], total=total)

            def on_confirmed(step: Comparison) -> None:
                effect = percentage(step.effect or 0.0, 1, signed=True)
                described = self._by_hash[step.head]
                said = f"confirmed: {described.short} {described.subject}".rstrip()
                print_sentences(self._console, [f"{said}, {effect}"], "bold")

            search = Search(
                source_of=lambda part: Logged(source, self._log, part),
                good=self._good,
                candidates=self._range.hashes,
                metric=self._metric,
                controls=self._controls,
                direction=self._direction,
                plan=self._plan,
                pool=self._pool,
                on_probe=on_probe,
                on_confirmed=on_confirmed,
                # Minutes that the user gave may be used, not those that a job happens to have.
                spare_s=lambda: (self._how.limit.left() or 0.0) / 2 if self._how.minutes else 0.0,
            )
            self.finding = search.run()
        self._stopped = search.stopped
        # What each of the comparisons showed within a commit is kept for the next ones.
        compared: dict[tuple[str, str], list[Pair]] = {}
        for probe in self._probes:
            if probe.stage is not Stage.SEARCH and probe.pair and not probe.pair.discarded:
                compared.setdefault((probe.reference, probe.commit), []).append(probe.pair)
        for pairs in compared.values():
            self._noise.add({self._benchmark: pairs})
        return BY_OUTCOME[self.finding.outcome]

    def print_answer(self) -> None:
        """Print the commits that were measured, and the answer."""
        assert self.finding is not None
        kept = (probe.pair for probe in self._probes if probe.pair and not probe.pair.discarded)
        readings = (
            (f"{self._benchmark} of {short(reading.commit)}", reading.value)
            for pair in kept
            for reading in (pair.base, pair.head)
        )
        self._doubt(processes_apart(readings))
        first, *others = account.answer_lines(self.finding, self._by_hash)
        self._record.results["answer"] = first
        others += self._next_question()
        table = account.commit_table(self.finding, self._range.commits)
        if self._probes:
            print_table(self._console, table)
        print_sentences(self._console, [first], "bold")
        took = f"{len(self._probes)} pairs, {self.seconds:.0f} s"
        print_sentences(self._console, [*others, took])
        self._look_why(self.finding)
        print_sentences(self._console, self._why)
        if self._probes:
            page = self._issue(
                heading=f"{self._benchmark}: {first}",
                tables=[table],
                remarks=[*others, *self._why, *self._record.warnings],
                **self._range.on_page(),
            )
            self._files.write(table, page=page)

    def _look_why(self, finding: Finding) -> None:
        """Find out what differs besides time at the commits that are named."""
        if not finding.confirmed_steps or self._stopped is not None:
            return
        row = [Commit(self._good), *self._range.commits]
        with self._looking() as why:
            for step in finding.confirmed_steps:
                before = row[[commit.hash for commit in row].index(step.commits[0]) - 1]
                head = self._by_hash[step.commit]
                sign = 1 if (step.effect > 0) == (self._metric.better == "lower") else -1
                lines = why(before, head, self._options, sign=sign, has_commits=False)
                self._why += [f"{head.short}: {line[0].lower()}{line[1:]}" for line in lines]

    def _next_question(self) -> list[str]:
        """How to ask which files of the one commit that is named did it, and what a merge brought.

        A sentence with the command for each, with the commit in place of what the user called the
        ends.
        """
        finding = self.finding
        if finding is None or len(finding.suspects) != 1 or finding.outcome is not Outcome.FOUND:
            return []
        culprit, (good, bad) = self._by_hash[finding.suspects[0]], self._range.words
        if (labels := self._subject.labels) and self._subject.axis.have_files:
            before = labels[labels.index(culprit.hash) - 1]
            names = {good: (before,), bad: (culprit.hash, "--axis", "commits")}
            return [f"Which of its commits did it: {repeating(sys.argv[1:], names)}"]
        if kind_of(culprit.hash) != "commit" or not culprit.parents:
            return []
        repository = self._subject.axis.variant(culprit.hash).repository
        lines = []
        count = len(changes_between(culprit.parents[0], culprit.hash, repository))
        if count > 1:
            # A command behind -- needs both ends.
            parent = (f"{culprit.short}^",) if "--" in sys.argv else ()
            line = repeating(sys.argv[1:], {good: parent, bad: (culprit.short, "--files")})
            lines.append(f"Which of its {count} files did it: {line}")
        if len(culprit.parents) > 1:
            forks = repository.ask("merge-base", *culprit.parents[:2], also_fine=1)
            for fork in forks.decode().split():
                names = {good: (short(fork),), bad: (f"{culprit.short}^2",)}
                line = repeating(sys.argv[1:], names)
                lines.append(f"It is a merge. Which of the commits that it brought in: {line}")
        return lines

    def results(self) -> dict[str, Any]:
        stages = [probe.stage for probe in self._probes]
        return {
            "pairs": {str(stage): stages.count(stage) for stage in Stage},
            "pool": len(self._pool),
            "why": self._why,
            **super().results(),
        }


class SearchingFiles(Searching):
    """One search among the files of a change, from its first process to its record."""

    finding: FileFinding | None

    def __init__(
        self,
        subject: DeclaredSubject,
        # What the user calls the two commits, without the change and with it, and what they are.
        ends: Sequence[tuple[str, Commit]],
        direction: Direction,
        plan: SearchPlan,
    ) -> None:
        if subject.labels:
            raise Refused("labels have no files of their own: --files takes commits.")
        self._ends = ends
        (_, self._good), (_, self._bad) = ends
        self._scratch = tempfile.TemporaryDirectory(prefix="kvtrail-")
        self._changes, self._left_out = self._find_changes(subject)
        self._commit_of = cache(self._made_of)
        self._labels = [change.label for change in self._changes]
        among = {"good": self._good.to_json(), "bad": self._bad.to_json(), "files": self._labels}
        super().__init__(subject, among, direction, plan)

    def _find_changes(self, subject: DeclaredSubject) -> tuple[list[FileChange], list[str]]:
        """The changes that matter to what is measured, and how many do not."""
        repository = subject.axis.variant(self._good.hash).repository
        all_changes = changes_between(self._good.hash, self._bad.hash, repository)
        self._parts = PartCommits(self._good.hash, repository, Path(self._scratch.name))
        found = []
        for change in all_changes:
            commit = self._parts.commit([change])
            subject.axis.add(commit, self._parts.repository)
            if not subject.are_same(self._good.hash, commit):
                found.append(change)
        count = len(all_changes) - len(found)
        files = "1 file is" if count == 1 else f"{count} files are"
        left_out = [f"{files} left out, being no part of what is measured"] if count else []
        # Sorting keeps the order of each kind.
        return sorted(found, key=lambda change: change.is_prose), left_out

    def _made_of(self, numbers: tuple[int, ...]) -> str:
        """The good commit with these changes made."""
        if not numbers:
            return self._good.hash
        if len(numbers) == len(self._changes):
            return self._bad.hash
        commit = self._parts.commit([self._changes[number] for number in numbers])
        self._subject.axis.add(commit, self._parts.repository)
        return commit

    def known(self) -> ExitCode | None:
        """See `Session`: there is nothing to divide."""
        return None if len(self._changes) > 1 else ExitCode.GOOD

    def settle(self) -> ExitCode:
        """See `Session`: parts of the change are not needed any more then."""
        with self._scratch:
            return super().settle()

    def names(self) -> Sequence[str]:
        return [self._good.hash, self._bad.hash]

    def begin(self) -> list[str]:
        what = (
            f"searching {len(self._changes)} files of {self._bad.short} for "
            f"{self._direction.phrase}"
        )
        return [what, *self._left_out, *super().begin()]

    def measure(self, source: RoundSource) -> ExitCode:
        bar = Progress(self._console, "warming up (each end once), then measuring", None, "pairs")

        def on_pair(part: str, now: Headway, pairs: Mapping[str, Pair]) -> None:
            self._record.samples += [{"stage": part, **one.to_json()} for one in pairs.values()]
            print_sentences(self._console, self._reaches(pairs.values()))
            bar.show(now.kept, f"comparing ({part})")

        def on_try(tried: FileTry) -> None:
            print_sentences(self._console, [account.try_line(tried, self._labels)])

        with bar:
            search = FileSearch(
                lambda part: Logged(source, self._log, part),
                self._commit_of,
                self._good.hash,
                self._bad.hash,
                len(self._changes),
                self._metric,
                controls=self._controls,
                likely=sum(not change.is_prose for change in self._changes),
                direction=self._direction,
                plan=self._plan,
                pool=self._pool,
                on_pair=on_pair,
                on_try=on_try,
            )
            self.finding = search.run()
        self._stopped = search.stopped
        return BY_OUTCOME[self.finding.outcome]

    def print_answer(self) -> None:
        """Print the parts that were compared, and the answer."""
        if self.finding is not None:
            table = account.file_table(self.finding, self._labels)
            answers = account.file_lines(self.finding, self._labels)
            page = self._issue(
                heading=f"{self._benchmark}: {answers[0]}",
                commits=f"{described(self._bad)} against {described(self._good)}",
                tables=[table],
                remarks=[*answers[1:], *self._left_out, *self._record.warnings],
                names=lasting_names(self._ends),
            )
            self._files.show(table, page=page)
        elif self._changes:
            only = f"changes one file only, {self._labels[0]}: there is nothing to divide"
            answers = [f"{self._bad.short} {only}."]
        else:
            answers = [f"{self._bad.short} changes no file that matters to what is measured."]
        self._record.results["answer"] = answers[0]
        print_sentences(self._console, answers[:1], "bold")
        print_sentences(self._console, answers[1:])
