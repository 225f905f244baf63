"""`swap BASE HEAD OLD NEW`: does a change belong to the commits or to the labels?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from asv_bench.cli.compare import plan_of, refuse_hopeless
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused
from asv_bench.fleet.opening import FleetOptions
from asv_bench.session.comparing import Comparing
from asv_bench.session.exit_codes import GATES
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
from asv_bench.subjects.swap import CONTRASTS, SwapSubject, belonging


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
    plan = plan_of(rounds, benchmarks=len(CONTRASTS)).with_margin(how.margin / 100)
    files = outputs.files()
    asked = SubjectOptions(subject, "commits", devices)
    chosen = asked.choice((), metric, how, hosts).subject("swap")
    if chosen.has_engine:
        raise Refused("swap needs a subject with labels; name its file with --subject.")
    if old == new:
        raise Refused(f"{old} is both the old and the new label; give two of them.")
    swapped = SwapSubject(chosen, (old, new))
    refuse_hopeless(plan, len(swapped.metrics))
    ends = ends_of(swapped, (base, head), files.console)
    Swapping(swapped, ends, plan, files, how, hosts, command="swap", gate=GATES).answer()


class Swapping(Comparing):
    """The question which of the two a change belongs to."""

    def names(self) -> Sequence[str]:
        """See `Session`: all four cells."""
        assert isinstance(self._subject, SwapSubject)
        return self._subject.cells(*self._ends)

    def answers(self) -> list[str]:
        """See `Comparing`."""
        verdicts = {comparison.verdict for comparison in self.comparisons}
        if verdicts & {Verdict.FAILED, Verdict.NOT_MEASURED}:
            return super().answers()
        return [*super().answers(), *belonging(self.comparisons)]
