"""One comparison of two commits, from its first process to its record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from asv_bench.compare.comparison import CommitComparison, Headway
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.tables import (
    clock_findings,
    comparison_table,
    headline,
    others_lines,
    pair_line,
    worst_first,
)
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.explain.why import why
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import Commit
from asv_bench.measure.log import Logged
from asv_bench.measure.rounds import Design, two_cells
from asv_bench.measure.samples import CommitUnusable, Pair, RoundSource
from asv_bench.measure.software import Software, differences
from asv_bench.output.console import Verbosity, print_sentences, print_table, verbosity
from asv_bench.output.issue_text import described, lasting_names, place_of
from asv_bench.output.progress import Progress
from asv_bench.output.record import TableFiles
from asv_bench.session.exit_codes import ExitCode, exit_code, gate_text
from asv_bench.session.options import MeasuringOptions
from asv_bench.session.session import Session
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import processes_apart


class Comparing(Session):
    """One comparison from its first process to its record, of two cells or by another design."""

    def __init__(
        self,
        subject: DeclaredSubject,
        # What the user calls them; the first is the base, the last the head.
        given: Sequence[tuple[str, Commit]],
        plan: ComparisonPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
        *,
        command: str = "compare",
        # Those that name the subject, for the command that says why the head is slower; None:
        # nothing is said of that.
        options: Sequence[str] | None = None,
        # Verdicts that end with an exit code of their own.
        gate: Collection[Verdict] = (),
        design: Design | None = None,  # None: pairs of the base and the head
    ) -> None:
        self._options = options
        self._why: list[str] = []
        self._given = given
        self._base, self._head = base, head = given[0][1], given[-1][1]
        self._plan = plan
        self._gate = gate
        self._design = design or two_cells(*self._ends)
        self._metric_of = self._design.named(subject.metrics)
        self._units = {name: metric.unit for name, metric in self._metric_of.items()}
        self._margins = {
            name: metric.margin
            for name, metric in self._metric_of.items()
            if metric.margin is not None
        }
        settings = {
            "base": base.to_json(),
            "head": head.to_json(),
            "benchmarks": list(self._metric_of),
            "margins": self._margins,
            "plan": plan.to_json(),
        }
        super().__init__(command, settings, subject, files, how, hosts)
        self._learn({})
        self.comparisons: list[Comparison] = []
        self.is_interrupted = False

    def known(self) -> ExitCode | None:
        """See `Session`: nothing that is measured differs."""
        if self._how.anyway or not self._subject.are_same(*self._ends):
            return None
        self._print_commits()
        self.comparisons = [Comparison.of_same(name, *self._ends) for name in self._metric_of]
        return self.code()

    def names(self) -> Sequence[str]:
        """See `Session`."""
        return [commit.hash for _, commit in self._given]

    def begin(self) -> list[str]:
        """See `Session`."""
        self._print_commits()
        known = self._noise.of([metric.name for metric in self._subject.metrics])
        metrics = self._metric_of.items()
        self._learn({name: known[one.name] for name, one in metrics if one.name in known})
        return []

    def _learn(self, pools: Mapping[str, Sequence[float]]) -> None:
        """Compare with this noise of the machine."""
        self._pools = pools
        metrics = self._subject.metrics
        self._comparison = CommitComparison(self._design, metrics, self._plan, pools)

    def measure(self, source: RoundSource) -> ExitCode:
        """See `Session`: also after Ctrl-C, or where a commit is unusable, with what is known."""
        bar = Progress(
            self._console,
            "warming up (each commit once), then measuring",
            self._plan.cap,
            "pairs at most",
        )

        def on_pair(now: Headway, measured: Mapping[str, Pair]) -> None:
            if verbosity() is Verbosity.VERBOSE:
                lines = (pair_line(now.measured, pair) for pair in measured.values())
                print_sentences(self._console, lines)
            # Kept pairs take no time, and say nothing of the time that is left.
            if now.measured > self._log.restored:
                bar.show(now.kept, f"comparing, an answer is possible after {now.next_look}")

        try:
            with bar:
                logged = Logged(source, self._log, "pairs")
                self.comparisons = self._comparison.run(logged, on_pair)
        except (KeyboardInterrupt, CommitUnusable) as error:
            self.is_interrupted = isinstance(error, KeyboardInterrupt)
            self.comparisons = self._comparison.answers_after(error)
        # Not pair by pair: an interruption would leave out one that the answer rests on.
        self._record.samples = [pair.to_json() for pair in self._comparison.pairs()]
        if not self.is_interrupted:
            learnt = self._design.of_lives(self._subject.metrics).items()
            self._noise.add({metric: self._comparison.kept_pairs(name) for metric, name in learnt})
        self.comparisons = self.judged(self.comparisons)
        return self.code()

    def judged(self, measured: list[Comparison]) -> list[Comparison]:
        """The answers that come of what was measured."""
        return measured

    def code(self) -> ExitCode:
        """The exit code that the verdicts call for."""
        if self.is_interrupted:
            return ExitCode.INTERRUPTED
        return exit_code([comparison.verdict for comparison in self.comparisons], self._gate)

    def print_answer(self) -> None:
        """Show the table, the reasons and the answer in a line."""
        place = place_of(self._record.machine, self._subject.devices)
        title = f"{self._versus(lambda commit: commit.short)} on {place}"
        for sentence in [*self._apart(), *clock_findings(self._pairs())]:
            self._console.print(sentence, style="yellow")
            self._record.warnings.append(sentence)
        table = comparison_table(self.comparisons, self._units, title, self._plan, self._margins)
        print_table(self._console, table)
        for reason in dict.fromkeys(entry.reason for entry in self.comparisons if entry.reason):
            self._console.print(reason)
        self._record.warn(self._console, self._contradictions())
        units = {metric.name: metric.unit for metric in self._subject.known}
        others = self._subject.others
        print_sentences(self._console, others_lines(others, self._ends, units))
        print_sentences(self._console, self.answers(), "bold")
        self._look_why()
        print_sentences(self._console, self._why)
        self._files.write(table, page=self._page())

    def _look_why(self) -> None:
        """Find out what differs besides time, where the head is slower."""
        is_slower = any(one.verdict is Verdict.SLOWER for one in self.comparisons)
        if self._options is None or not is_slower or self.is_interrupted:
            return
        # The answer stands already, and Ctrl-C leaves it.
        looking = Progress(self._console, "looking at what differs besides time")
        with suppress(KeyboardInterrupt), looking:
            self._why = why(self._subject, self._base, self._head, self._options, self._cells())

    def heading(self) -> str:
        """The answer in a line."""
        return headline(self.comparisons)

    def answers(self) -> list[str]:
        """The answer in a line, or in several."""
        return [self.heading()]

    def _page(self) -> str:
        """The comparison as text for an issue or a pull request."""
        shown = worst_first(self.comparisons)
        reasons = [f"{one.benchmark}: {one.reason}" for one in shown if one.reason]
        interruption = ["Interrupted before its end."] if self.is_interrupted else []
        return self._issue(
            heading=self.heading(),
            commits=self._versus(described),
            tables=[comparison_table(shown, self._units, "", self._plan, self._margins)],
            remarks=[
                *(answer for answer in self.answers() if answer != self.heading()),
                *self._record.warnings,
                *reasons,
                *interruption,
                *self._why,
            ],
            names=self._lasting_names(),
        )

    def results(self) -> dict[str, Any]:
        """See `Session`."""
        return {
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "cells": {end: cell.to_json() for end, cell in self._cells().items()},
            "others": self._subject.others,
            "why": self._why,
            "pools": {name: len(pool) for name, pool in self._pools.items()},
            "gate": gate_text(self._gate),
            "interrupted": self.is_interrupted,
        }

    @property
    def _ends(self) -> tuple[str, str]:
        return self._base.hash, self._head.hash

    def _cells(self) -> Mapping[str, Software]:
        return self._subject.cells

    def _apart(self) -> list[str]:
        """What differs between the ends besides what was asked."""
        cells = self._cells()
        if not all(end in cells for end in self._ends):
            return []
        return differences(*(cells[end] for end in self._ends))

    def _pairs(self) -> Iterator[Pair]:
        """The pairs of all benchmarks that were not discarded."""
        for name in self._metric_of:
            yield from self._comparison.kept_pairs(name)

    def _print_commits(self) -> None:
        for role, commit in self._commits().items():
            self._console.print(f"{role} {commit.short} {commit.subject}".rstrip())

    def _lasting_names(self) -> dict[str, tuple[str, ...]]:
        return lasting_names(self._given)

    def _versus(self, show: Callable[[Commit], str]) -> str:
        """What is compared with what."""
        return f"{show(self._head)} against {show(self._base)}"

    def _commits(self) -> Mapping[str, Commit]:
        """What is compared, by its role."""
        return {"base": self._base, "head": self._head}

    def _contradictions(self) -> list[str]:
        """What to know where processes of one commit gave figures far apart."""
        unit = "s" if set(self._units.values()) == {"seconds"} else ""
        readings = (
            (f"{name} of {side} {reading.commit[:8]}", reading.value)
            for name in self._metric_of
            for pair in self._comparison.kept_pairs(name)
            for side, reading in (("base", pair.base), ("head", pair.head))
        )
        return processes_apart(readings, unit)
