"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Annotated, Any, TypeAlias

import typer

from asv_bench.cli.report import branch_to_show
from asv_bench.compare.comparison import Headway
from asv_bench.compare.confirmation import Standing, Suspicion, confirm
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import NothingSelected, Refused
from asv_bench.fleet.opening import FleetOptions
from asv_bench.git.commits import WORKING_TREE, resolve_revision
from asv_bench.git.repository import GitError
from asv_bench.history.acknowledged import read_acknowledged, reason_for
from asv_bench.history.change_points import Change
from asv_bench.history.histories import Histories
from asv_bench.history.kept_answers import ANSWERS, keep_answers
from asv_bench.history.stored_changes import StoredChanges, is_of, stored_changes
from asv_bench.history.triage import Triaged, change_table, suspicions_of, triage
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import print_sentences
from asv_bench.output.markdown import inline
from asv_bench.output.progress import Progress
from asv_bench.output.record import require_places
from asv_bench.output.table_files import TableFiles
from asv_bench.packages import require_packages
from asv_bench.process.machine import machine_facts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    MOST,
    MeasuringOptions,
    Outputs,
    ResultsFolder,
    SubjectOptions,
)
from asv_bench.session.session import Session
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject

SourceOf: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[RoundSource]]
INTERRUPTED = "Interrupted: some changes were not compared to the end, or not at all."


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
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    most: Annotated[
        int, typer.Option(min=1, max=MOST, help="Compare at most so many, the largest first.")
    ] = 12,
    branch: Annotated[
        str | None,
        typer.Option(
            help="Judge the commits on this one's line of first parents (default: main, or HEAD "
            "where there is no such branch)."
        ),
    ] = None,
    how: MeasuringOptions,
    hosts: FleetOptions,
    outputs: Outputs,
) -> None:
    """Find where the stored histories moved, and compare the commits around each change.

    A series is of one machine in one environment, along one line of first parents. Without
    --confirm, or where results are of another machine, Python, torch or Triton than those here, a
    change is not confirmed yet. What acknowledged.toml beside the results names is not compared.
    Exit code 3: a regression was confirmed; 0: none was; 1: a failure, of a comparison too; 2:
    refused; 130: interrupted, with what was measured written down; the same command goes on where
    it stopped.
    """
    files = outputs.files()
    choice = asked.choice(how=how, hosts=hosts)
    declared = choice.declared("changes")
    histories = Histories.of_subject(declared, results)
    kept = histories.folder / ANSWERS / "answers.json"
    require_places(files.record, histories.pages / "index.html", kept)
    require_packages("jinja2", "scipy")
    tip = _tip(histories, branch)
    stored = stored_changes(histories, benchmark or (), machine, tip)
    print_sentences(files.console, stored.notes)
    settings = {"benchmark": list(benchmark or ()), "machine": machine, "branch": tip}
    most = most if confirm_them else 0
    Confirming(histories, stored, most, choice, settings, declared, files, how, hosts).answer()


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


class Confirming(Session):
    """Which changes of stored histories stand, once the commits around them are compared.

    At most so many are compared, of those that were measured on a machine like this one.
    """

    def __init__(
        self,
        histories: Histories,
        stored: StoredChanges,
        most: int,
        choice: Choice,
        settings: Mapping[str, Any],
        subject: DeclaredSubject,
        files: TableFiles,
        how: MeasuringOptions,
        hosts: FleetOptions,
    ) -> None:
        super().__init__("changes", settings, subject, files, how, hosts)
        self._histories = histories
        self._stored = stored
        self._choice = choice
        self._acknowledged = read_acknowledged(histories.folder)
        here = machine_facts()
        open_here = (
            change
            for change, _ in stored.found
            if is_of(here, change) and not reason_for(change, self._acknowledged)
        )
        self._wanted = list(islice(open_here, most))
        self._suspicions: dict[Change, Suspicion] = {}
        self._answers: dict[Suspicion, Comparison] = {}
        self._is_interrupted = False

    def known(self) -> ExitCode | None:
        """See `Session`: no change is to be compared, or nothing differs between its commits."""
        names = self._chosen()
        self._suspicions, gone = suspicions_of(self._wanted, names)
        print_sentences(self._console, gone)
        if not self._how.anyway:
            self._answers |= self._same()
        return None if self._left() else self._code()

    def _chosen(self) -> list[str]:
        """The metrics that are still there of those that changed."""
        benchmarks = {change.series.benchmark for change in self._wanted}
        if not benchmarks:
            return []
        newest = self._wanted[0]
        names = "|".join(sorted(map(re.escape, benchmarks)))
        # Names of kvtrail's own have parameters behind them.
        end = r"(\(|$)" if self._subject.is_own else "$"
        self._subject.near = [newest.since.hash, newest.until.hash]
        with contextlib.suppress(NothingSelected):
            self._choice.choose(self._subject, [f"^({names}){end}"])
            return [metric.name for metric in self._subject.metrics]
        return []

    def _left(self) -> list[Suspicion]:
        """What is to be compared."""
        return [one for one in self._suspicions.values() if one not in self._answers]

    def names(self) -> Sequence[str]:
        """See `Session`."""
        ends = [(one.before, one.after) for one in self._left()]
        return list(dict.fromkeys(end for both in ends for end in both))

    def devices(self) -> Sequence[str]:
        """See `Session`: where nothing is compared it needs none."""
        return super().devices() if self._left() else ()

    def begin(self) -> list[str]:
        """See `Session`."""
        return [f"comparing the commits around {len(self._left())} changes"]

    def source(self) -> AbstractContextManager[SourceOf]:
        """See `Session`: what gives a source of some metrics."""
        return self._subject.sources()

    def measure(self, source: SourceOf) -> ExitCode:
        """See `Session`: also after Ctrl-C, with what is known."""

        def on_pair(_: Headway, measured: Mapping[str, Pair]) -> None:
            self._record.samples.extend(pair.to_json() for pair in measured.values())
            bar.show(len(self._record.samples))

        @contextlib.contextmanager
        def kept_or_new(benchmarks: Sequence[str]) -> Iterator[RoundSource]:
            with source(benchmarks) as pairs:
                yield Logged(pairs, self._log, "changes")

        plan = ComparisonPlan().with_margin(self._how.margin / 100)
        with Progress(self._console, "comparing", unit="pairs") as bar:
            metrics = {metric.name: metric for metric in self._subject.metrics}
            answers = confirm(self._left(), metrics, kept_or_new, on_pair, plan, self._noise)
        self._answers |= answers.by_suspicion
        self._is_interrupted = answers.is_interrupted
        if self._is_interrupted:
            self._record.notes.append(INTERRUPTED)
        return self._code()

    def _same(self) -> dict[Suspicion, Comparison]:
        """Answers to suspicions between whose commits nothing that is measured differs."""
        same: dict[Suspicion, Comparison] = {}
        for one in self._suspicions.values():
            # A commit that the repository lacks is compared, and said to be lacking then.
            with contextlib.suppress(GitError):
                if self._subject.are_same(one.before, one.after):
                    same[one] = Comparison.of_same(one.benchmark, one.before, one.after)
        return same

    def _triaged(self) -> list[Triaged]:
        answers = {
            change: self._answers[one]
            for change, one in self._suspicions.items()
            if one in self._answers
        }
        return triage(self._stored.found, answers, self._acknowledged)

    def _code(self) -> ExitCode:
        """A confirmed regression outweighs a comparison that failed."""
        if self._is_interrupted:
            return ExitCode.INTERRUPTED
        triaged = self._triaged()
        if any(entry.standing is Standing.REGRESSION for entry in triaged):
            return ExitCode.REGRESSION
        if any(entry.answer and entry.answer.verdict is Verdict.FAILED for entry in triaged):
            return ExitCode.FAILED
        return ExitCode.GOOD

    def print_answer(self) -> None:
        """See `Session`; the answers are kept, and the page is built anew."""
        triaged, console = self._triaged(), self._console
        self._record.notes += self._stored.notes
        if self._is_interrupted:
            console.print(INTERRUPTED)
        if triaged or self._files.markdown or self._files.csv:
            page = self._page(triaged) if self._record.samples else None
            self._files.show(change_table(triaged), page=page)
        else:
            console.print("no series moved by 1 % or more")
        reasons = [entry.answer.reason for entry in triaged if entry.answer]
        print_sentences(console, filter(None, [*reasons, *(one.bisection for one in triaged)]))
        keep_answers(self._histories.folder / ANSWERS, self._record.started, triaged)
        # Not at the top: every command would wait for jinja2.
        from asv_bench.pages.site import build_page

        console.print(f"page: {build_page(self._histories)}")

    def _page(self, triaged: Sequence[Triaged]) -> str:
        """What was compared as text for an issue."""
        counts = Counter(str(entry.standing) for entry in triaged)
        return self._issue(
            heading=", ".join(f"{count} {standing}" for standing, count in counts.items()),
            commits=f"Changes in the stored histories of {inline(self._subject.name)}",
            tables=[change_table(triaged)],
            remarks=[*self._stored.notes, *self._record.warnings],
            names={},
        )

    def results(self) -> dict[str, Any]:
        """See `Session`."""
        return {
            "interrupted": self._is_interrupted,
            "changes": [entry.to_json() for entry in self._triaged()],
        }
