"""`explain BASE HEAD`: what differs between two commits that explains a change of time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.explain.explaining import Explaining
from asv_bench.explain.explanation import known_effect
from asv_bench.output.record import STANDARD_OUTPUT
from asv_bench.session import options
from asv_bench.session.comparing import Comparing, of_heads
from asv_bench.session.exit_codes import ExitCode


def explain(
    base: Annotated[str, options.BASE],
    head: Annotated[str, options.HEAD],
    command: options.MeasuredCommand = None,
    metric: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    traces: Annotated[int, typer.Option(min=0, max=20, help="Traces of each end; 0: none.")] = 3,
    record: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The record of the comparison to explain (default: the newest stored one of the "
            "same two).",
        ),
    ] = None,
    minutes: options.Minutes = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the two first, as `compare` does.")
    ] = False,
    files: options.Outputs,
) -> None:
    """Say why one commit is slower than another: what differs besides the time.

    It looks at the files, the packages and the variables of both ends, at exact counters of
    kvtrail's engine, and at traces taken in turns, which it joins by kernel, operator or function
    of Python. At most three causes are named, those that explain the change best; what is within
    noise is not named. The change is that of the newest comparison stored of the same two. Exit
    code 0: it was looked, whether or not a cause was found; 5: a commit cannot be measured; 1: a
    failure; 2: refused; 130: interrupted.
    """
    if compare and record is not None:
        raise Refused("--compare makes a record, and --record names one; give one of them.")
    chosen = asked.choice(command, metric, near=(base, head)).subject("explain")
    ends = options.ends_of(chosen, (base, head), files.console)
    how = options.RunningOptions(minutes=minutes)
    if compare:
        beside = options.Outputs(STANDARD_OUTPUT if files.console.stderr else None)
        minutes = minutes and minutes / 2  # for the comparison, and as many for the traces
        comparing = Comparing(chosen, of_heads(chosen, ends, anyway=True), ComparisonPlan())
        comparing.with_options(beside, options.RunningOptions(minutes=minutes))
        code = comparing.settle()
        if code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        record = comparing.show(code, None)
    (_, old), (_, new) = ends
    effect = known_effect((old.hash, new.hash), chosen, record, is_new=compare)
    Explaining(chosen, ends, effect, traces, is_compared=compare).with_options(files, how).answer()
