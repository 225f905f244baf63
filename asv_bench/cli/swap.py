"""`swap BASE HEAD OLD NEW`: does a change belong to the commits or to the labels?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from asv_bench.cli.compare import plan_of, refuse_hopeless
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import Commit
from asv_bench.measure.rounds import BY_BOTH, BY_COMMITS, BY_LABELS, four_cells, named
from asv_bench.output.record import TableFiles
from asv_bench.session.comparing import Comparing
from asv_bench.session.exit_codes import GATES, ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    HEAD,
    Devices,
    MeasuringOptions,
    MostRounds,
    Outputs,
    SubjectOptions,
    SubjectPath,
    ends_of,
)
from asv_bench.subjects.axis import under_label
from asv_bench.subjects.declared import DeclaredSubject

CONTRASTS = 3
"""Of each metric: by commits, by labels, and by both together."""


@grouped
def swap(
    base: Annotated[str, typer.Argument(help="The older commit.")],
    head: Annotated[str, HEAD],
    old: Annotated[str, typer.Argument(help="A label, such as the old version of a dependency.")],
    new: Annotated[str, typer.Argument(help="The new one.")],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-b", help="Regular expression, looked for in names of metrics."),
    ] = None,
    subject: SubjectPath = None,
    rounds: MostRounds = None,
    devices: Devices = None,
    *,
    how: MeasuringOptions,
    hosts: FleetOptions,
    outputs: Outputs,
) -> None:
    """Measure two commits under two labels, and say which of the two a change belongs to.

    The four cells run next to each other in every round. The subject's file gives setup and measure
    the commit's tree and $KVTRAIL_LABEL. Exit codes are those of compare.
    """
    plan = plan_of(rounds, benchmarks=CONTRASTS).with_margin(how.margin / 100)
    files = outputs.files()
    asked = SubjectOptions(subject, "commits", devices)
    chosen = asked.choice((), metric, how, hosts).subject("swap")
    if chosen.has_engine:
        raise Refused("swap needs a subject with labels; name its file with --subject.")
    if old == new:
        raise Refused(f"{old} is both the old and the new label; give two of them.")
    refuse_hopeless(plan, CONTRASTS * len(chosen.metrics))
    ends = ends_of(chosen, (base, head), files.console)
    Swapping(chosen, ends, (old, new), plan, files, how, hosts).answer()


class Swapping(Comparing):
    """The question which of the two a change belongs to."""

    def __init__(
        self,
        subject: DeclaredSubject,
        given: Sequence[tuple[str, Commit]],
        labels: tuple[str, str],
        plan: ComparisonPlan,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions,
    ) -> None:
        self._labels = labels
        (_, base), (_, head) = given
        commits = base.hash, head.hash
        cells = [under_label(commit, label) for commit in commits for label in labels]
        design = four_cells(commits, cells)
        super().__init__(
            *(subject, given, plan, files, how, hosts), command="swap", gate=GATES, design=design
        )

    def known(self) -> ExitCode | None:
        """See `Session`: the labels differ, whatever the commits are."""
        return None

    def names(self) -> Sequence[str]:
        """See `Session`: all four cells."""
        return self._design.cells

    def sentence(self) -> str:
        """See `Session`."""
        return f"{super().sentence()}, under {self._labels[0]} and {self._labels[1]}"

    def described(self) -> dict[str, Any]:
        """See `Session`."""
        return {**super().described(), "labels": list(self._labels)}

    def answers(self) -> list[str]:
        """See `Comparing`."""
        verdicts = {comparison.verdict for comparison in self.comparisons}
        if verdicts & {Verdict.FAILED, Verdict.NOT_MEASURED}:
            return super().answers()
        return [*super().answers(), *belonging(self.comparisons)]


def belonging(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence a metric that says which axis its change belongs to."""
    verdicts = {comparison.benchmark: comparison.verdict for comparison in comparisons}
    ends = named("", BY_BOTH)
    metrics = [name.removesuffix(ends) for name in verdicts if name.endswith(ends)]
    return [_belongs_to(metric, verdicts) for metric in metrics]


def _belongs_to(metric: str, verdicts: Mapping[str, Verdict]) -> str:
    differs = {
        contrast: verdicts[named(metric, contrast)] in (Verdict.SLOWER, Verdict.FASTER)
        for contrast in (BY_COMMITS, BY_LABELS, BY_BOTH)
    }
    if differs[BY_BOTH]:
        return f"{metric}: what the commits do depends on the label; compare under one label alone"
    if differs[BY_COMMITS] and differs[BY_LABELS]:
        return f"{metric}: the change belongs to the commits and to the labels, each on its own"
    if differs[BY_COMMITS] or differs[BY_LABELS]:
        axis, other = ("commits", BY_LABELS) if differs[BY_COMMITS] else ("labels", BY_COMMITS)
        rest = (
            ""
            if verdicts[named(metric, other)] is Verdict.EQUIVALENT
            else (f"; whether the {other.removeprefix('by ')} do something too is not shown")
        )
        return f"{metric}: the change belongs to the {axis}{rest}"
    return f"{metric}: no change was shown along either axis"
