"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import MOST, Anyway, Outputs, ResultsFolder, SubjectOptions
from asv_bench.cli.report import branch_to_show
from asv_bench.compare.comparison import Progress
from asv_bench.compare.confirmation import Answers, Standing, Suspicion, confirm
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import NothingSelected, Refused
from asv_bench.git.commits import WORKING_TREE, resolve_revision
from asv_bench.git.repository import GitError
from asv_bench.history.acknowledged import read_acknowledged, reason_for
from asv_bench.history.change_points import Change
from asv_bench.history.histories import Histories
from asv_bench.history.kept_answers import ANSWERS, keep_answers
from asv_bench.history.stored_changes import is_of, stored_changes
from asv_bench.history.triage import Triaged, change_table, suspicions_of, triage
from asv_bench.output.console import print_sentences
from asv_bench.output.progress import Progress as Bar
from asv_bench.output.record import WORKPLACE, Record, require_places
from asv_bench.packages import require_packages
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import machine_facts
from asv_bench.process.samples import Pair
from asv_bench.process.termination import termination_as_interrupt
from asv_bench.process.threads import threads_text
from asv_bench.subjects.declared import DeclaredSubject

INTERRUPTED = "Interrupted: some changes were not compared to the end, or not at all."
HELP = """Find where the stored histories moved, and compare the commits around each change.

A series is of one machine in one environment, along one line of first parents. Without --confirm,
or where results are of another machine, Python, torch or Triton than those here, a change is
not confirmed yet. What acknowledged.toml beside the results names is not compared.
Exit code 3: a regression was confirmed; 0: none was; 1: a failure, of a comparison too; 2: refused;
130: interrupted, with what was measured written down.
"""


@grouped
def changes(
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "--benchmark",
            "-b",
            help="Text found in the name of a metric or benchmark (default: all).",
        ),
    ] = None,
    *,
    asked: SubjectOptions,
    results: ResultsFolder = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Only this machine's results.")
    ] = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    most: Annotated[
        int,
        typer.Option("--most", min=1, max=MOST, help="Compare at most so many, the largest first."),
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
    outputs: Outputs,
) -> None:
    """Find changes in stored results, confirm them, and build the page.

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
    files = outputs.files()
    console = files.console
    declared = asked.choice().declared("changes")
    histories = Histories.of_subject(declared, results)
    kept = histories.folder / ANSWERS
    require_places(files.record, histories.pages / "index.html", kept / "answers.json")
    require_packages("jinja2", "scipy")
    tip = _tip(histories, branch)
    acknowledged = read_acknowledged(histories.folder)
    stored = stored_changes(histories, benchmark or (), machine, tip)
    settings = {
        "subject": histories.subject if declared.is_own else declared.to_json(),
        "benchmark": list(benchmark or ()),
        "machine": machine,
        "branch": tip,
    }
    record = Record("changes", settings, notes=list(stored.notes))
    print_sentences(console, stored.notes)
    here = machine_facts()
    open_here = (
        change
        for change, _ in stored.found
        if is_of(here, change) and not reason_for(change, acknowledged)
    )
    ours = list(islice(open_here, most))
    answers: dict[Change, Comparison] = {}
    is_interrupted = False
    if confirm_them and ours:
        confirming = Confirming(declared, asked.devices, record, console)
        with checkout_lock(WORKPLACE):
            answers, is_interrupted = confirming.run(ours, anyway=anyway)
    triaged = triage(stored.found, answers, acknowledged)
    if triaged or outputs.markdown or outputs.csv:
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
    path = record.write(files.record)
    keep_answers(kept, record.started, triaged)
    # Not at the top: every command would wait for jinja2.
    from asv_bench.pages.site import build_page

    console.print(f"page: {build_page(histories)}")
    console.print(f"record: {path}")
    if code:
        raise typer.Exit(code)


def _tip(histories: Histories, branch: str | None) -> str:
    """The last commit of the line to judge, as git names it; "" where labels are judged."""
    root = histories.repository
    if histories.labels:
        if branch is not None:
            raise Refused("--branch names a line of commits, and labels are judged; leave it out.")
        return ""
    if branch is None:
        return branch_to_show(root)
    if branch == WORKING_TREE:
        raise Refused("--branch names a line of commits, and . is none; give a branch or HEAD.")
    resolve_revision(branch, root)
    return branch


@dataclass(frozen=True, slots=True)
class Confirming:
    """Comparing the commits around changes of a subject."""

    subject: DeclaredSubject
    devices: str | None
    record: Record
    console: Console

    def run(
        self, found: Sequence[Change], *, anyway: bool
    ) -> tuple[dict[Change, Comparison], bool]:
        """What comparing says of each change, and whether it was interrupted."""
        self.subject.near = [found[0].since.hash, found[0].until.hash]
        is_there = self._choose({change.series.benchmark for change in found})
        metrics = self.subject.metrics if is_there else ()
        suspicions, gone = suspicions_of(found, [metric.name for metric in metrics])
        print_sentences(self.console, gone)
        known = {} if anyway else self._same(suspicions.values())
        wanted = [suspicion for suspicion in suspicions.values() if suspicion not in known]
        answers = self._compare(wanted) if is_there and wanted else Answers({})
        if answers.is_interrupted:
            self.record.notes.append(INTERRUPTED)
            self.console.print(INTERRUPTED)
        known |= answers.by_suspicion
        by_change = {change: known[one] for change, one in suspicions.items() if one in known}
        return by_change, answers.is_interrupted

    def _choose(self, benchmarks: Collection[str]) -> bool:
        """Choose what measures these; whether any of them is still there."""
        names = "|".join(sorted(map(re.escape, benchmarks)))
        with contextlib.suppress(NothingSelected):
            # Names of kvtrail's own have parameters behind them.
            end = r"(\(|$)" if self.subject.is_own else "$"
            self.subject.choose([f"^({names}){end}"], self.devices)
            return True
        return False

    def _compare(self, wanted: Sequence[Suspicion]) -> Answers:
        subject = self.subject
        self.record.look_around(self.console, subject.devices)
        what = f"comparing the commits around {len(wanted)} changes"
        if subject.is_own:
            what += f", {threads_text(self.record.threads)} a process"
        margins = {
            metric.name: metric.margin for metric in subject.metrics if metric.margin is not None
        }
        with (
            termination_as_interrupt(),
            subject.sources() as pairs_of,
            Bar(self.console, what, unit="pairs") as bar,
        ):

            def on_pair(_: Progress, measured: Mapping[str, Pair]) -> None:
                self.record.samples.extend(pair.to_json() for pair in measured.values())
                bar.show(len(self.record.samples))

            return confirm(wanted, pairs_of, on_pair, margins)

    def _same(self, suspicions: Iterable[Suspicion]) -> dict[Suspicion, Comparison]:
        """Answers to suspicions between whose commits nothing that is measured differs."""
        same: dict[Suspicion, Comparison] = {}
        for one in suspicions:
            # A commit that the repository lacks is compared, and said to be lacking then.
            with contextlib.suppress(GitError):
                if self.subject.are_same(one.before, one.after):
                    same[one] = Comparison.of_same(one.benchmark, one.before, one.after)
        return same


def _exit_code(triaged: Sequence[Triaged]) -> ExitCode:
    """A confirmed regression outweighs a comparison that failed."""
    if any(entry.standing is Standing.REGRESSION for entry in triaged):
        return ExitCode.REGRESSION
    if any(entry.answer and entry.answer.verdict is Verdict.FAILED for entry in triaged):
        return ExitCode.FAILED
    return ExitCode.GOOD
