"""`explain BASE HEAD`: what differs between two commits that explains a change of time."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from asv_bench.cli.comparing import Comparing
from asv_bench.cli.exit_codes import NO_GATE, ExitCode
from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import EngineOptions, Metrics, Outputs
from asv_bench.compare.bench_setup import BenchSetup, termination_as_interrupt
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.explain.effect import Effect, effect_in, stored_effect
from asv_bench.explain.explanation import Explanation
from asv_bench.explain.looking import Looking
from asv_bench.git.commit_sources import WORKING_TREE
from asv_bench.git.repository import Commit
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import STANDARD_OUTPUT
from asv_bench.output.issue_text import environment_of, lasting_names, repeating
from asv_bench.output.progress import Progress
from asv_bench.output.record import RUNS, WORKPLACE, Record
from asv_bench.output.table_files import TableFiles
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.samples import CommitUnusable
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.subjects.engine_runs import EngineRuns

Explained: TypeAlias = DeclaredSubject | BenchSetup
"""Subjects that have ends to look at."""

HELP = (
    "Say why one commit is slower than another: what differs besides the time.\n\n"
    "It looks at the files, the packages and the variables of both ends, at exact counters of "
    "kvtrail's engine, and at traces taken in turns, which it joins by kernel or operator. At "
    "most three causes are named, those that explain the change best; what is within noise is "
    "not named. The change is that of the newest comparison stored of the same two. Exit code 0: "
    "it was looked, whether or not a cause was found; 5: a commit cannot be measured; 1: a "
    "failure; 2: refused; 130: interrupted."
)


@grouped
def explain(
    base: Annotated[
        str,
        typer.Argument(
            help="The older commit: a hash, branch, tag, HEAD~3, or . for the tree; or a label."
        ),
    ],
    head: Annotated[str, typer.Argument(help="The newer one; . is the working tree as it stands.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="The command that was compared."),
    ] = None,
    metric: Metrics = None,
    *,
    asked: EngineOptions,
    traces: Annotated[
        int, typer.Option("--traces", min=0, max=20, help="Traces of each end; 0: none.")
    ] = 3,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            dir_okay=False,
            help="The record of the comparison to explain (default: the newest stored one of the "
            "same two).",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the two first, as `compare` does.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Look even where both ends hold the same files.")
    ] = False,
    outputs: Outputs,
) -> None:
    """Look at both ends and say what explains the change.

    Raises
    ------
    Refused
        If the commits, the record or the metric do not exist or do not fit together.
    typer.Exit
        With the code of what came of it.
    """
    if compare and record is not None:
        raise Refused("--compare makes a record, and --record names one; give one of them.")
    files = outputs.files()
    choice = asked.choice(command, metric)
    with checkout_lock(WORKPLACE), termination_as_interrupt():
        if compare:
            record = _compared(choice, (base, head), files)
        explaining = Explaining(choice, (base, head), record, files)
        code = explaining.run(traces, anyway=anyway)
    explaining.print_answer()
    files.console.print(f"record: {explaining.write_record(files.record, code)}")
    if code:
        raise typer.Exit(code)


def _chosen(choice: Choice, names: tuple[str, str]) -> tuple[Explained, Commit, Commit]:
    """The subject and its two ends."""
    chosen = choice.subject("explain")
    if not isinstance(chosen, DeclaredSubject | BenchSetup):
        raise Refused("explain looks at two commits, or two labels, of one subject.")
    known = {name: chosen.resolve(name) for name in names if name != WORKING_TREE}
    # The working tree's snapshot is a file of the checkout too: it comes last.
    base, head = (known.get(name) or chosen.resolve(name) for name in names)
    return chosen, base, head


def _compared(choice: Choice, names: tuple[str, str], files: TableFiles) -> Path:
    """Compare the two as `compare` does; where the record is."""
    chosen, base, head = _chosen(choice, names)
    beside = TableFiles(record=STANDARD_OUTPUT if STANDARD_OUTPUT in files else None)
    given = list(zip(names, (base, head), strict=True))
    comparing = Comparing(chosen, given, ComparisonPlan(), beside)
    comparing.run(None)
    if comparing.is_interrupted:
        raise KeyboardInterrupt
    comparing.print_answer()
    code = comparing.exit_code(frozenset())
    path = comparing.write_record(None, NO_GATE, code)
    files.console.print(f"record: {path}")
    return path


class Explaining:
    """One explanation from its first look to its record.

    Parameters
    ----------
    choice
        What the user says of the subject.
    names
        The ends, as the user names them.
    record
        Of the comparison to explain; None: the newest stored one.
    files
        Where tables go.
    """

    def __init__(
        self,
        choice: Choice,
        names: tuple[str, str],
        record: Path | None,
        files: TableFiles,
    ) -> None:
        self._subject, self._base, self._head = _chosen(choice, names)
        self._files = files
        self._console = files.console
        self._asked = shlex.join([*self._names(names), *choice.words()])
        self._effect = self._find_effect(record)
        self._given = names
        self._found: Explanation | None = None
        self._seconds = 0.0
        self._failure = ""
        self._record = Record(
            "explain",
            {
                "base": self._base.to_json(),
                "head": self._head.to_json(),
                "subject": self._subject.to_json(),
                "fixed": self._subject.fixed,
                "benchmarks": [metric.name for metric in self._subject.metrics],
                "devices": list(self._subject.devices),
            },
        )

    def _names(self, given: tuple[str, str]) -> list[str]:
        """The ends as anybody can name them, wherever HEAD is."""
        ends = (self._base, self._head)
        return [
            name if name == WORKING_TREE else end.short
            for name, end in zip(given, ends, strict=True)
        ]

    def _find_effect(self, record: Path | None) -> Effect | None:
        ends, subject = (self._base.hash, self._head.hash), self._subject
        if record is not None:
            return effect_in(record, ends, subject.to_json(), subject.metrics)
        return stored_effect(RUNS, ends, subject.to_json(), subject.metrics)

    def run(self, traces: int, *, anyway: bool = False) -> ExitCode:
        """Look at both ends."""
        for role, commit in (("base", self._base), ("head", self._head)):
            self._console.print(f"{role} {commit.short} {commit.subject}".rstrip())
        if self._effect is None:
            sentence = (
                f"No comparison of these two is stored; `kvtrail compare {self._asked}` measures "
                f"how much slower the head is, and --compare does so first."
            )
            print_sentences(self._console, [sentence])
        self._record.look_around(self._console, self._subject.devices)
        looking = Looking(
            self._subject, self._base, self._head, self._effect, traces, self._progress
        )
        begun = time.monotonic()
        try:
            self._found = looking.run(anyway=anyway)
            self._seconds = time.monotonic() - begun
        except MeasurementFailed as error:
            self._failure = str(error)
            is_lacking = isinstance(error, CommitUnusable) and error.is_lacking
            return ExitCode.NOTHING_MEASURED if is_lacking else ExitCode.FAILED
        return ExitCode.GOOD

    def _progress(self, what: str, total: int, unit: str) -> Progress:
        return Progress(self._console, what, total, unit)

    def print_answer(self) -> None:
        """Print the table, what lies between the ends, and the causes."""
        found = self._found
        if found is None:
            print_sentences(self._console, [self._failure], "bold")
            return
        self._console.print()
        self._console.print(found.headline(), style="bold")
        print_sentences(self._console, found.answer(), "bold")
        self._files.show(*([found.table()] if found.differences else []), page=self._page(found))
        print_sentences(self._console, [*found.context(), *found.notes])

    def _page(self, found: Explanation) -> str:
        """The explanation as text for an issue or a pull request."""
        machine, subject = self._record.machine, self._subject
        has_engine = isinstance(subject, EngineRuns | BenchSetup)
        environment = environment_of(
            self._record,
            subject.sentence(),
            machine.gpu or f"{machine.cpu}, {machine.cores} cores",
            with_torch=has_engine,
            seconds=self._seconds,
        )
        ends = zip(self._given, (self._base, self._head), strict=True)
        return found.page(environment, repeating(sys.argv[1:], lasting_names(ends)))

    def write_record(self, path: Path | None, code: ExitCode) -> Path:
        """Write what was found; return where."""
        self._record.notes += [*self._subject.remarks, *([self._failure] if self._failure else [])]
        found = self._found
        self._record.notes += found.notes if found is not None else []
        self._record.results = {
            "exit_code": int(code),
            "outcome": code.name.lower(),
            "seconds": self._seconds,
            **(found.to_json() if found is not None else {}),
        }
        return self._record.write(path)
