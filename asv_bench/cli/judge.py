"""`judge BASE_FILE... -- HEAD_FILE...`: is it slower, by files that others left?"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import msgspec
import typer

from asv_bench import __version__
from asv_bench.cli.commands import BETWEEN
from asv_bench.compare.files import compare_files, plan_of_files, why_so_wide
from asv_bench.compare.plan import DEFAULT_MARGIN
from asv_bench.compare.tables import comparison_table, worst_first
from asv_bench.errors import Refused
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import issue_text, repeating
from asv_bench.output.record import Record, without_folders
from asv_bench.output.stored_json import shown
from asv_bench.session.comparing import by_gate, print_verdicts
from asv_bench.session.exit_codes import GATES
from asv_bench.session.options import AnswerOutputs, Margin
from asv_bench.subjects.metrics import MetricTable
from asv_bench.subjects.result_files import ResultFiles
from asv_bench.words import first_of

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
    comparisons = compare_files(found.figures, found.absences, names, plan)
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
