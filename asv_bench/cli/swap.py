"""`swap BASE HEAD OLD NEW`: does a change belong to the commits or to the labels?"""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.cli.compare import plan_of, refuse_hopeless
from asv_bench.cli.comparing import Comparing
from asv_bench.cli.exit_codes import GATES
from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import (
    MOST,
    Devices,
    Margin,
    Outputs,
    RequireQuiet,
    Resume,
    SubjectPath,
    ends_of,
    say_unmeasured,
)
from asv_bench.compare.kept_pairs import FOLDER
from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.compare.verdict import Verdict
from asv_bench.errors import Refused
from asv_bench.output.destinations import require_writable
from asv_bench.output.record import WORKPLACE
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.swap import CONTRASTS, SwapSubject, belonging


@grouped
def swap(
    base: Annotated[str, typer.Argument(help="The older commit.")],
    head: Annotated[str, typer.Argument(help="The newer one; . is the working tree as it stands.")],
    old: Annotated[str, typer.Argument(help="A label, such as the old version of a dependency.")],
    new: Annotated[str, typer.Argument(help="The new one.")],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-b", help="Regular expression, looked for in names of metrics."),
    ] = None,
    subject: SubjectPath = None,
    pairs: Annotated[
        int | None,
        typer.Option("--rounds", max=MOST, help="Rounds of four lives at most (default: 30)."),
    ] = None,
    margin: Margin = 100 * DEFAULT_MARGIN,
    devices: Devices = None,
    resume: Resume = None,
    require_quiet: RequireQuiet = False,
    *,
    outputs: Outputs,
) -> None:
    """Measure two commits under two labels, and say which of the two a change belongs to.

    The four cells run next to each other in every round. The subject's file gives setup and measure
    the commit's tree and $KVTRAIL_LABEL. Exit codes are those of compare.

    Raises
    ------
    Refused
        If the commits or labels do not exist, or the subject has no labels.
    typer.Exit
        With the code that the verdicts call for.
    """
    require_writable(FOLDER / "pairs.jsonl")
    plan = plan_of(pairs, benchmarks=len(CONTRASTS)).with_margin(margin / 100)
    files = outputs.files()
    chosen = Choice((), subject, metric or (), devices, "commits").subject("swap")
    if chosen.has_engine:
        raise Refused("swap needs a subject with labels; name its file with --subject.")
    if old == new:
        raise Refused(f"{old} is both the old and the new label; give two of them.")
    swapped = SwapSubject(chosen, (old, new))
    refuse_hopeless(plan, len(swapped.metrics))
    with checkout_lock(WORKPLACE):
        ends = ends_of(swapped, (base, head))
        say_unmeasured(chosen, ends[-1][1], files.console)
        comparing = Swapping(swapped, ends, plan, files, gate=GATES)
        comparing.run(resume, require_quiet=require_quiet)
    comparing.end(comparing.code())


class Swapping(Comparing):
    """The question which of the two a change belongs to."""

    def answers(self) -> list[str]:
        """See `Comparing`."""
        verdicts = {comparison.verdict for comparison in self.comparisons}
        if verdicts & {Verdict.FAILED, Verdict.NOT_MEASURED}:
            return super().answers()
        return [*super().answers(), *belonging(self.comparisons)]
