"""`calibrate`: test the verdicts of `compare` on this machine with known slowdowns."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from asv_bench.cli.compare import plan_of
from asv_bench.errors import Refused
from asv_bench.lab.calibrating import Calibrating
from asv_bench.session import options


def calibrate(
    command: options.MeasuredCommand = None,
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    commit: Annotated[
        str | None,
        typer.Option(
            help="The commit or label that is measured; . is the working tree as it stands "
            "(default: HEAD, or the first label)."
        ),
    ] = None,
    null: Annotated[
        int, typer.Option(min=0, max=options.MOST, help="Comparisons of a commit with itself.")
    ] = 8,
    planted: Annotated[
        str, typer.Option(help="Slowdowns in per cent, separated by commas, or none.")
    ] = "1,2,3,5",
    within: Annotated[
        str,
        typer.Option(
            help="Minutes of a comparison, separated by commas: for each the smallest change is "
            "said that it finds."
        ),
    ] = "1,5,15",
    pairs: options.MostPairs = None,
    how: options.MeasuringOptions,
    files: options.Outputs,
) -> None:
    """Compare a commit with itself and with known slowdowns: do the verdicts hold on this machine,
    and which change is found?

    To plant a slowdown kvtrail sleeps after the command. For any other metric your benchmark must
    wait $KVTRAIL_DELAY_S seconds inside the timed part. The noise is kept for comparisons to come.

    Exit code 0: the verdicts hold; 1: a contradiction or another failure; 2: refused; 5: nothing
    could be measured; 130: interrupted, with no word on whether they hold; the same command goes on
    with the pairs of the commit with itself.
    """
    effects: list[float] = []
    if planted.strip() != "none":
        per_cents = numbers_of("--planted", planted, "per cents, such as 1,2,3,5, or none", 1000)
        effects = [one / 100 for one in per_cents]
    limits = numbers_of("--within", within, "minutes, such as 1,5,15")
    if not effects and not null:
        raise Refused("--null 0 --planted none leaves nothing to compare.")
    plan = plan_of(pairs, how.margin)
    subject = asked.choice(command, benchmark, how, near=(commit,)).subject("calibrate")
    given = commit, subject.resolve(commit or (*subject.labels, "HEAD")[0])
    calibrating = Calibrating(subject, given, plan, null=null, effects=effects, minutes=limits)
    calibrating.with_options(files, how).answer()


def numbers_of(option: str, text: str, what: str, below: float = math.inf) -> list[float]:
    """Positive numbers with commas between. Raises Refused if that is not what an option has."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < one < below for one in numbers):
        raise Refused(f"{option} {text!r} must be {what}.")
    return numbers
