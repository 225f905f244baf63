"""`fixed PARENT CULPRIT HEAD`: is the regression of a commit fixed now, and wholly?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Annotated, Any

import typer

from asv_bench.cli.compare import plan_of, refuse_hopeless
from asv_bench.compare.plan import QUICK_PAIRS, ComparisonPlan
from asv_bench.compare.repair import Repair, State, repair_of
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import Roles, named
from asv_bench.output.record import TableFiles
from asv_bench.session.comparing import Comparing
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    ComparedMetrics,
    EngineOptions,
    ListBenchmarks,
    MeasuringOptions,
    MostRounds,
    Outputs,
    ends_of,
    parent_of,
)
from asv_bench.subjects.declared import DeclaredSubject

ROLES = Roles("parent", "culprit", "head")
NAMES = 3


@grouped
def fixed(
    commits: Annotated[
        list[str],
        typer.Argument(
            metavar="[PARENT] CULPRIT [HEAD] [-- COMMAND...]",
            help="Three commits, or labels: before the regression, with it, and now (. is the "
            "working tree as it stands); or the culprit alone. A command whose wall time is "
            "measured, as in compare, needs all three.",
        ),
    ],
    benchmark: ComparedMetrics = None,
    *,
    asked: EngineOptions,
    rounds: MostRounds = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PAIRS} rounds at most.")] = False,
    how: MeasuringOptions,
    hosts: FleetOptions,
    outputs: Outputs,
    list_benchmarks: ListBenchmarks = False,
) -> None:
    """Say whether the regression of a commit is fixed now, and wholly: not fixed, partly fixed (how
    much of the effect is back), wholly fixed, no regression to fix, or inconclusive.

    The commit before it, the commit and HEAD are all measured in every round. fixed CULPRIT alone
    asks about its first parent, it, and HEAD.

    Exit code 0: wholly fixed, or there was no regression; 3: not or only partly fixed, or HEAD is
    slower than PARENT; 4: inconclusive; 5: nothing could be measured; 1: a failure; 2: refused;
    130: interrupted, and the same command goes on where it stopped.
    """
    plan = plan_of(rounds, quick, "--rounds", NAMES).with_margin(how.margin / 100)
    files = outputs.files()
    is_alone = len(commits) == 1
    if not is_alone and len(commits) < NAMES:
        raise Refused(
            "fixed needs three commits or labels: kvtrail fixed PARENT CULPRIT HEAD; or the "
            "culprit alone, without a command behind it."
        )
    near = [*commits[:NAMES], *(["HEAD"] if is_alone else [])]
    choice = asked.choice(commits[NAMES:], benchmark, how, hosts, near=near)
    chosen = choice.subject("fixed")
    names = commits[:NAMES]
    if is_alone:
        names = [parent_of(chosen, names[0]), names[0], "HEAD"]
    refuse_hopeless(plan, len(ROLES.contrasts) * len(chosen.metrics))
    ends = ends_of(chosen, names, files.console)
    Fixing(chosen, ends, plan, files, how, hosts, is_alone=is_alone).answer()


class Fixing(Comparing):
    """The question whether a regression is fixed, from its first process to its record."""

    def __init__(
        self,
        subject: DeclaredSubject,
        three: Sequence[tuple[str, Commit]],
        plan: ComparisonPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions | None = None,
        *,
        is_alone: bool = False,  # whether the culprit alone was named
    ) -> None:
        self._is_alone = is_alone
        self._three = [commit for _, commit in three]
        hashes = parent, culprit, head = [commit.hash for commit in self._three]
        # Whether the head cannot have mended anything. Then the culprit alone is in question.
        self._is_unmended = not how.anyway and subject.are_same(culprit, head)
        design = ROLES.first_step(parent, culprit) if self._is_unmended else ROLES.design(*hashes)
        super().__init__(subject, three, plan, files, how, hosts, command="fixed", design=design)
        self._units = {
            named(metric.name, contrast): metric.unit
            for metric in subject.metrics
            for contrast in ROLES.contrasts
        }

    def sentence(self) -> str:
        """See `Session`."""
        return f"{super().sentence()}, of all {len(self._design.cells)} in every round"

    def described(self) -> dict[str, Any]:
        """See `Session`."""
        return {**super().described(), ROLES.between: self._three[1].to_json()}

    def known(self) -> ExitCode | None:
        """See `Session`: culprit or head is the same as the parent.

        Raises Refused if two of the commits are one, and are to be measured.
        """
        ends = self._ends_of_contrasts()
        same = [
            contrast
            for contrast, (base, head) in ends.items()
            if self._subject.are_same(base.hash, head.hash)
        ]
        if self._how.anyway or not set(ROLES.contrasts[:2]) & set(same):
            if not self._is_unmended and len({commit.hash for commit in self._three}) < NAMES:
                raise Refused("--anyway measures three commits, and two of these are the same one.")
            return None
        self._print_commits()
        for metric in self._subject.metrics:
            for contrast, (base, head) in ends.items():
                name = named(metric.name, contrast)
                unmeasured = Comparison(name, base.hash, head.hash, Verdict.NOT_MEASURED)
                known = Comparison.of_same(name, base.hash, head.hash)
                self.comparisons.append(known if contrast in same else unmeasured)
        return self.code()

    def judged(self, measured: list[Comparison]) -> list[Comparison]:
        """See `Comparing`: of a head that is the culprit's, only one contrast was measured."""
        if not self._is_unmended:
            return measured
        _, way, back = ROLES.contrasts
        _, culprit, head = (commit.hash for commit in self._three)
        found = []
        for metric, first in zip(self._subject.metrics, measured, strict=True):
            name = named(metric.name, back)
            whole = replace(first, benchmark=named(metric.name, way), head=head)
            found += [first, whole, Comparison.of_same(name, culprit, head)]
        return found

    def code(self) -> ExitCode:
        """The exit code that the answers call for."""
        if self.is_interrupted:
            return ExitCode.INTERRUPTED
        repairs = self.repairs()
        states = {repair.state for repair in repairs}
        if any(repair.is_slower for repair in repairs):
            return ExitCode.REGRESSION
        if State.FAILED in states:
            return ExitCode.FAILED
        if states == {State.NOT_MEASURED}:
            return ExitCode.NOTHING_MEASURED
        return ExitCode.INCONCLUSIVE if State.INCONCLUSIVE in states else ExitCode.GOOD

    def repairs(self) -> list[Repair]:
        """The answer for each metric."""
        by_name = {entry.benchmark: entry for entry in self.comparisons}
        pairs = {name: self._comparison.kept_pairs(name) for name in self._metric_of}
        found = []
        for name in (metric.name for metric in self._subject.metrics):
            step, way, back = (by_name[named(name, one)] for one in ROLES.contrasts)
            found.append(repair_of(name, (step, way, back), pairs, self._plan.confidence))
        return found

    def heading(self) -> str:
        """See `Comparing`."""
        repairs = self.repairs()
        if len(repairs) == 1:
            return repairs[0].sentence()
        counts = Counter(repair.state for repair in repairs)
        return ", ".join(f"{counts[state]} {state}" for state in State if counts[state])

    def answers(self) -> list[str]:
        """See `Comparing`."""
        return [*(repair.sentence() for repair in self.repairs()), self.heading()]

    def results(self) -> dict[str, Any]:
        """See `Comparing`."""
        return {**super().results(), "fixed": [repair.to_json() for repair in self.repairs()]}

    def _lasting_names(self) -> dict[str, tuple[str, ...]]:
        names = super()._lasting_names()
        if self._is_alone:
            # HEAD moves, though nobody named it.
            names[self._given[1][0]] = tuple(commit.short for commit in self._three)
        return names

    def _versus(self, show: Callable[[Commit], str]) -> str:
        return ", ".join(f"{role} {show(commit)}" for role, commit in self._commits().items())

    def _commits(self) -> Mapping[str, Commit]:
        roles = (ROLES.base, ROLES.between, ROLES.head)
        return dict(zip(roles, self._three, strict=True))

    def _ends_of_contrasts(self) -> dict[str, tuple[Commit, Commit]]:
        # The first step, the whole way, the second step.
        return dict(zip(ROLES.contrasts, combinations(self._three, 2), strict=True))
