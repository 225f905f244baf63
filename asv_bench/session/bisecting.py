"""Searches for what made a benchmark slower, from their first process to their record."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from asv_bench.bisect.account import answer_lines, commit_table, probe_line
from asv_bench.bisect.finding import Direction, Finding, Outcome, Probe, SearchPlan, Stage, Step
from asv_bench.bisect.search import Search
from asv_bench.compare.verdict import Comparison
from asv_bench.explain.why import why
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.git.trees import changes_between
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import print_sentences, print_table
from asv_bench.output.issue_text import described, repeating
from asv_bench.output.markdown import inline
from asv_bench.output.progress import Progress
from asv_bench.output.record import TableFiles
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions
from asv_bench.session.session import Session
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


class Searching(Session):
    """One search for what made a benchmark slower, or faster.

    `among` says what is searched, for the record.
    """

    def __init__(
        self,
        subject: DeclaredSubject,
        among: Mapping[str, Any],
        direction: Direction,
        plan: SearchPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
    ) -> None:
        self._metric = subject.metrics[0]
        self._benchmark = self._metric.name
        settings = {
            **among,
            "benchmark": self._benchmark,
            "direction": str(direction),
            "plan": plan.to_json(),
        }
        super().__init__("bisect", settings, subject, files, how, hosts)
        self._direction = direction
        self._plan = plan
        self._pool: Sequence[float] = ()

    def begin(self) -> list[str]:
        """See `Session`."""
        self._pool = self._noise.of([self._benchmark]).get(self._benchmark, [])
        return []

    def _outcome(self, code: ExitCode) -> str:
        return self._direction if code is ExitCode.REGRESSION else super()._outcome(code)


class Bisecting(Searching):
    """One bisection from its first process to its record."""

    def __init__(
        self,
        subject: DeclaredSubject,
        # What the user calls the two ends.
        words: tuple[str, str],
        good: str,
        commits: list[Commit],
        direction: Direction,
        plan: SearchPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
        *,
        # Those that name the subject, for the command that says why.
        options: Sequence[str] = (),
        is_same: bool = False,  # whether what is measured is the same at both ends
    ) -> None:
        among = {"good": good, "commits": [commit.to_json() for commit in commits]}
        super().__init__(subject, among, direction, plan, files, how, hosts)
        self._options = options
        self._is_same = is_same
        self._why: list[str] = []
        self._words = words
        self._good = good
        self._commits = commits
        self._by_hash = {commit.hash: commit for commit in commits}
        self._probes: list[Probe] = []
        self.finding: Finding | None = None

    def known(self) -> ExitCode | None:
        """See `Session`: what is measured is the same at both ends."""
        if not self._is_same:
            return None
        bad = self._commits[-1].hash
        gate = Comparison.of_same(self._benchmark, self._good, bad)
        asked = self._direction, self._benchmark, self._good, bad
        self.finding = Finding(Outcome.NONE, *asked, reason=gate.reason, gate=gate)
        return ExitCode.GOOD

    def names(self) -> Sequence[str]:
        """See `Session`."""
        return [self._good, *(commit.hash for commit in self._commits)]

    def begin(self) -> list[str]:
        """See `Session`."""
        first, last = self._commits[0].short, self._commits[-1].short
        what = (
            f"bisecting {len(self._commits)} {kind_of(self._good)}s, {first} to {last}, for "
            f"{self._direction.phrase}"
        )
        return [what, *super().begin()]

    def measure(self, source: RoundSource) -> ExitCode:
        """See `Session`."""
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
                if probe.guess is not None:
                    line = probe_line(len(self._probes), probe, probe.guess, self._by_hash)
                    print_sentences(self._console, [line])
                # A kept pair took no time, and says nothing of the time that is left.
                if len(self._probes) > self._log.restored:
                    bar.show(done, DOING[probe.stage])

            self.finding = Search(
                lambda part: Logged(source, self._log, part),
                self._good,
                [commit.hash for commit in self._commits],
                self._metric,
                direction=self._direction,
                plan=self._plan,
                pool=self._pool,
                on_probe=on_probe,
            ).run()
        self._add_noise()
        return BY_OUTCOME[self.finding.outcome]

    def _add_noise(self) -> None:
        """Keep what each of the comparisons showed within a commit for the next ones."""
        compared: dict[tuple[str, str], list[Pair]] = {}
        for probe in self._probes:
            if probe.stage is not Stage.SEARCH and probe.pair and not probe.pair.discarded:
                compared.setdefault((probe.reference, probe.commit), []).append(probe.pair)
        for pairs in compared.values():
            self._noise.add({self._benchmark: pairs})

    def print_answer(self) -> None:
        """Print the commits that were measured, and the answer."""
        assert self.finding is not None
        kept = (probe.pair for probe in self._probes if probe.pair and not probe.pair.discarded)
        readings = (
            (f"{self._benchmark} of {short(reading.commit)}", reading.value)
            for pair in kept
            for reading in (pair.base, pair.head)
        )
        doubts = processes_apart(readings)
        first, *others = answer_lines(self.finding, self._by_hash)
        others += self._next_question()
        table = commit_table(self.finding, self._commits)
        if self._probes:
            print_table(self._console, table)
        self._record.warn(self._console, doubts)
        print_sentences(self._console, [first], "bold")
        took = f"{len(self._probes)} pairs, {self.seconds:.0f} s"
        print_sentences(self._console, [*others, took])
        self._look_why(self.finding)
        print_sentences(self._console, self._why)
        if self._probes:
            page = self._page(first, [*others, *self._why, *self._record.warnings])
            self._files.write(table, page=page)

    def _look_why(self, finding: Finding) -> None:
        """Find out what differs besides time at the commits that are named."""
        if not finding.confirmed_steps:
            return
        # The answer stands already, and Ctrl-C leaves it.
        looking = Progress(self._console, "looking at what differs besides time")
        with suppress(KeyboardInterrupt), looking:
            self._why = [line for step in finding.confirmed_steps for line in self._lines(step)]

    def _lines(self, step: Step) -> list[str]:
        """What differs besides time at a commit that is named."""
        place = next(at for at, one in enumerate(self._commits) if one.hash == step.commits[0])
        before = self._commits[place - 1] if place else Commit(self._good)
        head = self._by_hash[step.commit]
        is_slower = (step.effect > 0) == (self._metric.better == "lower")
        lines = why(
            self._subject,
            before,
            head,
            self._options,
            self._subject.cells,
            sign=1 if is_slower else -1,
            has_commits=False,
        )
        return [f"{head.short}: {line[0].lower()}{line[1:]}" for line in lines]

    def _next_question(self) -> list[str]:
        """How to ask which files of the one commit that is named did it, and what a merge brought.

        A sentence with the command for each, with the commit in place of what the user called the
        ends.
        """
        finding = self.finding
        if finding is None or len(finding.suspects) != 1 or finding.outcome is not Outcome.FOUND:
            return []
        culprit, (good, bad) = self._by_hash[finding.suspects[0]], self._words
        if kind_of(culprit.hash) != "commit" or not culprit.parents:
            return []
        repository = self._subject.repository_of(culprit.hash)
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

    def _page(self, answer: str, remarks: list[str]) -> str:
        """The answer as text for an issue."""
        assert self.finding is not None
        good, bad = self._words
        return self._issue(
            heading=f"{self._benchmark}: {answer}",
            commits=f"{len(self._commits)} {kind_of(self._good)}s after "
            f"**{inline(short(self._good))}**, up to {described(self._commits[-1])}",
            tables=[commit_table(self.finding, self._commits)],
            remarks=remarks,
            names={good: (short(self._good),), bad: (short(self._commits[-1].hash),)},
        )

    def results(self) -> dict[str, Any]:
        """See `Session`."""
        finding = self.finding
        return {
            "pairs": {
                str(stage): sum(probe.stage is stage for probe in self._probes) for stage in Stage
            },
            "pool": len(self._pool),
            "why": self._why,
            "finding": None if finding is None else finding.to_json(),
        }
