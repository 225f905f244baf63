"""`swap BASE HEAD OLD NEW`: does a change belong to the commits or to the labels?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.measure.rounds import BY_BOTH, BY_COMMITS, BY_LABELS, four_cells, named
from asv_bench.session.comparing import Comparing, Question, by_gate
from asv_bench.session.exit_codes import GATES
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
from asv_bench.stats.families import LEAD
from asv_bench.subjects.axis import under_label


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
    files: Outputs,
) -> None:
    """Measure two commits under two labels, and say which of the two a change belongs to.

    The four cells run next to each other in every round. The subject's file gives setup and measure
    the commit's tree and $KVTRAIL_LABEL. Exit codes are those of compare.
    """
    asked = SubjectOptions(subject, "commits", devices)
    chosen = asked.choice((), metric, how).subject("swap")
    if not chosen.takes_labels:
        raise Refused("swap needs a subject with labels; name its file with --subject.")
    if old == new:
        raise Refused(f"{old} is both the old and the new label; give two of them.")
    plan = plan_of(rounds, how.margin, len(chosen.metrics) / LEAD)
    given = ends_of(chosen, (base, head), files.console)
    commits, labels = (given[0][1].hash, given[1][1].hash), (old, new)
    cells = [under_label(commit, label) for commit in commits for label in labels]
    question = Question(
        "swap",
        given,
        four_cells(commits, cells),
        by_gate(GATES, belonging),
        where=f", under {old} and {new}",
        details={"labels": list(labels)},
    )
    Comparing(chosen, question, plan).with_options(files, how).answer()


def belonging(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence a metric that says which axis its change belongs to."""
    verdicts = {comparison.benchmark: comparison.verdict for comparison in comparisons}
    if {Verdict.FAILED, Verdict.VOID, Verdict.NOT_MEASURED} & {*verdicts.values()}:
        return []
    ends = named("", BY_BOTH)
    metrics = [name.removesuffix(ends) for name in verdicts if name.endswith(ends)]
    return [f"{metric}: {_belongs_to(metric, verdicts)}" for metric in metrics]


def _belongs_to(metric: str, verdicts: Mapping[str, Verdict]) -> str:
    of = {one: verdicts[named(metric, one)] for one in (BY_COMMITS, BY_LABELS, BY_BOTH)}
    moved = [one for one, verdict in of.items() if verdict in (Verdict.SLOWER, Verdict.FASTER)]
    if BY_BOTH in moved:
        return "what the commits do depends on the label; compare under one label alone"
    if not moved:
        return "no change was shown along either axis"
    if len(moved) > 1:
        return "the change belongs to the commits and to the labels, each on its own"
    other = BY_LABELS if BY_COMMITS in moved else BY_COMMITS
    belongs = f"the change belongs to the {moved[0].removeprefix('by ')}"
    if of[other] is Verdict.EQUIVALENT:
        return belongs
    return f"{belongs}; whether the {other.removeprefix('by ')} do something too is not shown"
