"""`judge BASE_FILE... -- HEAD_FILE...`: is it slower, by files that others left?"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Annotated

import msgspec
import numpy as np
import typer

from asv_bench import __version__
from asv_bench.cli.commands import BETWEEN
from asv_bench.compare import judging
from asv_bench.compare.comparison import with_evidence
from asv_bench.compare.plan import DEFAULT_MARGIN, ComparisonPlan, Criterion, Look
from asv_bench.compare.tables import comparison_table, worst_first
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import Refused
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import issue_text, repeating
from asv_bench.output.record import Record, without_folders
from asv_bench.output.stored_json import shown
from asv_bench.output.table import percentage
from asv_bench.session.comparing import by_gate, print_verdicts
from asv_bench.session.exit_codes import GATES
from asv_bench.session.options import AnswerOutputs, Margin
from asv_bench.stats.paired import printed_digit
from asv_bench.subjects.metrics import MetricTable
from asv_bench.subjects.result_files import ResultFiles
from asv_bench.words import first_of

LEAST = 3
_UNLIKE = 0.7
"""Of a level that modes leave to so few files, what a test has: sides may scatter unlike."""
_METRIC = re.compile(r"([^=]+)=([^:]+)(?::([^:]*))?(?::(lower|higher))?")
_NOT_IN_TURNS = (
    "The two sides were not measured in turns by kvtrail. Whatever else changed between them, such "
    "as load, clocks, temperature or a driver, is part of the difference, and more files do not "
    "tell it apart. Where you can, let `kvtrail compare` measure both in turns."
)


def judge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE_FILE... -- HEAD_FILE...",
            help="Result files of both sides, each of a run of its own; at least three a side.",
        ),
    ],
    preset: Annotated[
        str,
        typer.Option("--preset", help="What wrote the files (default: what knows the first best)."),
    ] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH[:UNIT[:higher]]",
            help="A figure by its keys in the JSON, with dots between; may be given several times.",
        ),
    ] = None,
    margin: Margin = 100 * DEFAULT_MARGIN,
    *,
    outputs: AnswerOutputs,
) -> None:
    """Judge result files that somebody measured: slower, faster, equivalent or inconclusive.

    The presets are those of kvtrail.toml. Files of unlike cells are refused: of another model,
    load, number or share of failed requests, or GPU. Exit codes are those of compare.
    """
    if files.count(BETWEEN) != 1:
        raise Refused("judge needs two sides: kvtrail judge BASE_FILE... -- HEAD_FILE...")
    place = files.index(BETWEEN)
    base, head = files[:place], files[place + 1 :]
    plan = plan_of_files(len(base), len(head), margin / 100)
    found = ResultFiles(base, head, preset, dict(map(_metric, metric or [])))
    names = first_of(base, 1), first_of(head, 1)
    comparisons = compare_files(found, names, plan)
    conclusion = by_gate(GATES)(comparisons, {})
    warnings = [_NOT_IN_TURNS, *found.doubts(), *why_so_wide(plan)]
    cell = ", ".join(f"{word} {shown(value)}" for word, value in found.cell.items())
    cell = f"files of {found.preset or 'a form of their own'}{cell and ': '}{cell}"
    console, title = outputs.console, f"{names[1]} against {names[0]}"
    console.print(f"base {names[0]}\nhead {names[1]}\n{cell}")
    print_sentences(console, warnings, "yellow")
    table = comparison_table(comparisons, title, plan)
    print_verdicts(console, table, comparisons)
    print_sentences(console, conclusion.sentences, "bold")
    settings = {
        "base": {"files": list(map(without_folders, base))},
        "head": {"files": list(map(without_folders, head))},
        "benchmarks": [one.benchmark for one in comparisons],
        "preset": found.preset,
        "cell": found.cell,
        "plan": plan.to_json(),
    }
    notes = ["The machine of this record judged the files; they were measured elsewhere."]
    record = Record("judge", settings, found.samples(), notes=notes, warnings=warnings)
    record.results = {
        "exit_code": int(conclusion.code),
        "answer": conclusion.heading,
        "outcome": conclusion.code.name.lower(),
        "comparisons": list(map(asdict, comparisons)),
        "interrupted": False,
        "so_far": False,
        **conclusion.results,
    }
    asked = [word for one in metric or [] for word in ("--metric", one)]
    asked += ["--preset", preset] if preset else []
    page = issue_text(
        conclusion.heading,
        title,
        [comparison_table(worst_first(comparisons), "", plan)],
        [*warnings, *(f"{one.benchmark}: {one.reason}" for one in comparisons if one.reason)],
        {"measured": cell, "judged by": f"kvtrail {__version__}, {record.started}"},
        repeating(["judge", *asked, f"--margin={margin:g}", *base, "--", *head], {}),
    )
    outputs.write(table, page=page)
    outputs.write_answers(record, [one.name for one in found.figures if one.better == "higher"])
    console.print(f"record: {record.write(outputs.json)}")
    if conclusion.code:
        raise typer.Exit(conclusion.code)


def _metric(text: str) -> tuple[str, MetricTable]:
    """The name and the place of a metric; Refused where it is written otherwise."""
    found = _METRIC.fullmatch(text)
    if found is None:
        raise Refused(f"--metric is {text!r}; it takes NAME=PATH[:UNIT[:higher]].")
    name, path, unit, better = found.groups()
    told = {"path": path, "unit": unit or "", "better": better or "lower"}
    return name, msgspec.convert(told, MetricTable)


def plan_of_files(base: int, head: int, margin: float) -> ComparisonPlan:
    """How so many files a side are judged: at the plan's levels, or at those that can be kept."""
    if (fewest := min(base, head)) < LEAST:
        raise Refused(
            f"{base} and {head} files are too few to judge by; give at least {LEAST} a side, each "
            f"of a run of its own."
        )
    plan = ComparisonPlan().with_margin(margin)
    # Runs with two modes, narrow and far apart, lie apart by side as often by chance.
    modes = 2 * 4.0**-fewest
    share = 1.0 if modes <= plan.alpha else _UNLIKE
    return replace(
        plan,
        alpha=max(plan.alpha, modes),
        equivalence_alpha=max(plan.equivalence_alpha, modes / 2),
        looks=(Look(fewest, Criterion.UNPAIRED, share, 1.0),),
    )


def why_so_wide(plan: ComparisonPlan) -> list[str]:
    """A sentence where so few files cannot keep the level of other comparisons."""
    if plan.alpha <= (usual := ComparisonPlan().alpha):
        return []
    return [
        f"So few files keep a level of {percentage(plan.alpha, 2)}, and no test keeps a lower one: "
        f"runs that have two modes lie apart as often by chance. Five a side keep "
        f"{percentage(usual, 1)}."
    ]


def compare_files(
    files: ResultFiles, names: tuple[str, str], plan: ComparisonPlan
) -> list[Comparison]:
    """The answer for each metric of two sides that are called so, all of them one family."""
    test, none, evidence = Criterion.UNPAIRED, np.empty(0), {}
    for metric, sides in files.figures.items():
        base, head = ((-1 if metric.better == "higher" else 1) * np.log(one) for one in sides)
        digit = printed_digit([*sides[0], *sides[1]])
        evidence[metric.name] = judging.weigh_costs(base, head, plan, test, none, none, digit)
    verdicts = judging.judge(evidence, 0, dict.fromkeys(evidence), plan)
    answers = []
    for metric, sides in files.figures.items():
        entry, verdict = evidence[metric.name], verdicts[metric.name]
        reason = "" if verdict.is_clear else judging.why_open(entry, 0, plan)
        counts = len(sides[0]), len(sides[1])
        answer = Comparison(
            metric.name, *names, verdict, reason=reason, unit=metric.unit, files=counts
        )
        is_inverted = metric.better == "higher"
        answers.append(with_evidence(answer, entry, *sides, is_inverted=is_inverted))
    for metric, absence in files.absences.items():
        verdict = Verdict.FAILED if absence.has_failed else Verdict.NOT_MEASURED
        reason = absence.reason
        answers.append(Comparison(metric.name, *names, verdict, reason=reason, unit=metric.unit))
    return answers
