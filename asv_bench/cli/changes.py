"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.cli.options import Anyway, CsvPath, Devices, MarkdownPath, RecordPath
from asv_bench.cli.report import branch_to_show
from asv_bench.compare.bench_setup import (
    BenchSetup,
    devices_named,
    set_up,
    termination_as_interrupt,
)
from asv_bench.compare.comparison import Progress
from asv_bench.compare.confirmation import Answers, Standing, Suspicion, confirm
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import NothingSelected, Refused
from asv_bench.git.commit_sources import WORKING_TREE, CommitSources
from asv_bench.git.repository import GitError
from asv_bench.history.change_points import Change
from asv_bench.history.stored_changes import is_of, stored_changes
from asv_bench.history.triage import Triaged, change_table, suspicions_of, triage
from asv_bench.output.console import print_sentences
from asv_bench.output.progress import Progress as Bar
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.output.table_files import TableFiles
from asv_bench.packages import require_packages
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import machine_facts
from asv_bench.process.samples import Pair
from asv_bench.process.threads import threads_text

INTERRUPTED = "Interrupted: some changes were not compared to the end, or not at all."
HELP = """Find where the stored histories moved, and compare the commits around each change.

A series is of one machine in one environment, along one line of first parents. Without --confirm,
or where results are of another machine, Python, torch or Triton than those here, a change is an
unconfirmed candidate.
Exit code 3: a regression was confirmed; 0: none was; 1: a failure, of a comparison too; 2: refused;
130: interrupted, with what was measured written down.
"""


def changes(
    benchmark: Annotated[
        list[str] | None,
        typer.Option("--benchmark", "-b", help="Text found in a benchmark's name (default: all)."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Only this machine's results.")
    ] = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Compare at most so many, the largest first.")
    ] = 12,
    anyway: Anyway = False,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="Judge the commits on this one's line of first parents (default: main, or HEAD "
            "where there is no such branch).",
        ),
    ] = None,
    devices: Devices = None,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Find changes in stored results, confirm them, and build the triage page.

    Raises
    ------
    NothingMeasured
        If nothing is stored.
    Refused
        If the machine that was asked for has no results, or the branch does not exist.
    typer.Exit
        With 3 where a regression was confirmed, 1 where a comparison failed and none was, 130
        after an interruption.
    """
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    console = files.console
    page_path = REPOSITORY / "reports" / "pages" / "changes.html"
    require_places(json, page_path)
    require_packages("jinja2", "matplotlib", "scipy")
    tip = _tip(REPOSITORY, branch)
    stored = stored_changes(REPOSITORY, benchmark or (), machine, tip)
    settings = {"benchmark": list(benchmark or ()), "machine": machine, "branch": tip}
    record = Record("changes", settings, notes=list(stored.notes))
    print_sentences(console, stored.notes)
    here = machine_facts()
    ours = [change for change, _ in stored.found if is_of(here, change)][:most]
    answers: dict[Change, Comparison] = {}
    is_interrupted = False
    if confirm_them and ours:
        with checkout_lock(REPOSITORY):
            answers, is_interrupted = _confirm(ours, devices, record, console, anyway=anyway)
    triaged = triage(stored.found, answers)
    if triaged or markdown or csv:
        files.show(change_table(triaged))
    else:
        console.print("no series moved by 1 % or more")
    reasons = [answer.reason for answer in answers.values()]
    print_sentences(console, filter(None, [*reasons, *(entry.bisection for entry in triaged)]))
    code = ExitCode.INTERRUPTED if is_interrupted else _exit_code(triaged)
    record.results = {
        "exit_code": int(code),
        "outcome": code.name.lower(),
        "interrupted": is_interrupted,
        "changes": [entry.to_json() for entry in triaged],
    }
    path = record.write(json)
    # Not at the top: every command would wait for matplotlib.
    from asv_bench.pages.triage_page import build_triage_page

    page = build_triage_page(triaged, page_path)
    console.print(f"page: {page}")
    console.print(f"record: {path}")
    if code:
        raise typer.Exit(code)


def _tip(root: Path, branch: str | None) -> str:
    """The last commit of the line to judge, as git names it."""
    if branch is None:
        return branch_to_show(root)
    if branch == WORKING_TREE:
        raise Refused("--branch names a line of commits, and . is none; give a branch or HEAD.")
    CommitSources(root).resolve(branch)
    return branch


def _confirm(
    found: Sequence[Change],
    devices: str | None,
    record: Record,
    console: Console,
    *,
    anyway: bool,
) -> tuple[dict[Change, Comparison], bool]:
    """What comparing the commits around changes says, and whether it was interrupted."""
    names = "|".join(sorted({re.escape(change.series.benchmark) for change in found}))
    setup: BenchSetup | None = None
    with contextlib.suppress(NothingSelected):
        setup = set_up(REPOSITORY, [rf"^({names})(\(|$)"], devices)
    suspicions, gone = suspicions_of(found, setup.entries if setup else ())
    print_sentences(console, gone)
    known = {} if anyway else _same(suspicions.values())
    wanted = [suspicion for suspicion in suspicions.values() if suspicion not in known]
    answers = Answers({})
    if setup is not None and wanted:
        record.look_around(console, devices_named(devices))
        threads = threads_text(record.threads)
        what = f"comparing the commits around {len(wanted)} changes, {threads} a process"
        with termination_as_interrupt(), Bar(console, what, unit="pairs") as bar:

            def on_pair(_: Progress, measured: Mapping[str, Pair]) -> None:
                record.samples.extend(pair.to_json() for pair in measured.values())
                bar.show(len(record.samples))

            answers = confirm(wanted, setup.pairs_of, on_pair)
    if answers.is_interrupted:
        record.notes.append(INTERRUPTED)
        console.print(INTERRUPTED)
    known |= answers.by_suspicion
    by_change = {change: known[one] for change, one in suspicions.items() if one in known}
    return by_change, answers.is_interrupted


def _same(suspicions: Iterable[Suspicion]) -> dict[Suspicion, Comparison]:
    """Answers to suspicions whose commits have the same engine and kernels."""
    sources = CommitSources(REPOSITORY)
    same: dict[Suspicion, Comparison] = {}
    for one in suspicions:
        # A commit that the repository lacks is compared, and said to be lacking then.
        with contextlib.suppress(GitError):
            if sources.are_same(one.before, one.after):
                same[one] = Comparison.of_same(one.benchmark, one.before, one.after)
    return same


def _exit_code(triaged: Sequence[Triaged]) -> ExitCode:
    """A confirmed regression outweighs a comparison that failed."""
    if any(entry.standing is Standing.REGRESSION for entry in triaged):
        return ExitCode.REGRESSION
    if any(entry.answer and entry.answer.verdict is Verdict.FAILED for entry in triaged):
        return ExitCode.FAILED
    return ExitCode.GOOD
