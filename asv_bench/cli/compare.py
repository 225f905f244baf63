"""`compare BASE HEAD`: is one commit slower than another, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from asv_bench.cli.commands import BETWEEN
from asv_bench.compare.plan import QUICK_PAIRS, ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.session import options
from asv_bench.session.comparing import Comparing, of_heads
from asv_bench.session.exit_codes import GATES, gate_text, parse_gate


def compare(
    base: Annotated[str | None, options.BASE] = None,
    head: Annotated[str | None, options.HEAD] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HEAD...] [-- COMMAND...]",
            help="More of what HEAD may be, each compared with BASE; and a command whose wall time "
            "is measured, in the files of each commit and in any repository (default: what "
            "kvtrail.toml says). One word with spaces is for the shell.",
        ),
    ] = None,
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    named_base: Annotated[str | None, typer.Option("--base", help="BASE, as an option.")] = None,
    named_head: Annotated[str | None, typer.Option("--head", help="HEAD, as an option.")] = None,
    pairs: options.MostPairs = None,
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_PAIRS} pairs at most.")] = False,
    gate: Annotated[
        str,
        typer.Option(
            help="Verdicts that end with an exit code of their own, separated by commas, or none.",
        ),
    ] = gate_text(GATES),
    how: options.MeasuringOptions,
    files: options.AnswerOutputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Compare two commits: slower, faster, equivalent or inconclusive, benchmark by benchmark.

    Of more than two each is compared with the first, in one table, and all share the error of one
    comparison. Commits that hold the same files in what is measured are not measured.

    Exit code 0: nothing the gate is for, or the same; 3: a regression; 4: inconclusive; 5: nothing
    could be measured; 1: a failure; 2: refused; 130: interrupted, and the same command goes on
    where it stopped.
    """
    closing = parse_gate(gate)
    names, words = _ends([base, head, *(command or [])], named_base, named_head)
    choice = asked.choice(words, benchmark, how, near=names)
    chosen = choice.subject("compare")
    plan = plan_of(pairs, how.margin, len(chosen.metrics), len(names) - 1, quick=quick)
    given = options.ends_of(chosen, names, files.console)
    question = of_heads(chosen, given, anyway=how.anyway, gate=closing, options=choice.words())
    Comparing(chosen, question, plan).with_options(files, how).answer()


def plan_of(
    pairs: int | None, margin: float, benchmarks: float = 1, heads: int = 1, *, quick: bool = False
) -> ComparisonPlan:
    """The plan with so many pairs at most, and a margin in per cent.

    Raises Refused if --quick is given beside the pairs, or they cannot show a difference of one
    among so many benchmarks of so many heads.
    """
    if pairs is not None and quick:
        raise Refused("--quick and a number of pairs exclude each other: either is the most.")
    if quick:
        pairs = QUICK_PAIRS
    plan = ComparisonPlan() if pairs is None else ComparisonPlan.with_cap(pairs)
    what, count = "benchmarks" if heads == 1 else "comparisons", benchmarks * heads
    if not plan.can_differ(count):
        caps = range(plan.cap + 1, options.MOST)
        least = next(cap for cap in caps if plan.with_cap(cap).can_differ(count))
        raise Refused(
            f"among {count:.0f} {what}, {plan.cap} pairs cannot show a difference of one; "
            f"take at least {least}, or fewer {what}."
        )
    return plan.with_margin(margin / 100)


def _ends(
    words: Sequence[str | None], base: str | None, head: str | None
) -> tuple[list[str], list[str]]:
    """The ends and the command, of all arguments and the options --base and --head."""
    given = [word for word in words if word is not None]
    place = given.index(BETWEEN) if BETWEEN in given else len(given)
    ends, command = given[:place], given[place + 1 :]
    if base is not None and head is not None:
        return [base, head], [*ends, *command]
    if base is not None or head is not None or len(ends) < 2:
        raise Refused("compare needs two commits or labels: kvtrail compare BASE HEAD.")
    return ends, command
