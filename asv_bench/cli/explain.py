"""`explain BASE HEAD`: what differs between two commits that explains a change of time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.errors import Refused
from asv_bench.explain.effect import known_effect
from asv_bench.explain.explanation import Explanation
from asv_bench.explain.looking import Looking
from asv_bench.git.commits import WORKING_TREE
from asv_bench.git.repository import Commit
from asv_bench.output.console import print_sentences
from asv_bench.output.destinations import STANDARD_OUTPUT
from asv_bench.output.issue_text import described, lasting_names
from asv_bench.output.markdown import inline
from asv_bench.output.table_files import TableFiles
from asv_bench.session.comparing import Comparing
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    BASE,
    HEAD,
    Anyway,
    ComparedMetrics,
    EngineOptions,
    MeasuredCommand,
    MeasuringOptions,
    Outputs,
    ends_of,
)
from asv_bench.session.session import Session
from asv_bench.subjects.declared import DeclaredSubject

_ON_PAGE = 12
"""Files and commits that a page lists."""


@grouped
def explain(
    base: Annotated[str, BASE],
    head: Annotated[str, HEAD],
    command: MeasuredCommand = None,
    metric: ComparedMetrics = None,
    *,
    asked: EngineOptions,
    traces: Annotated[int, typer.Option(min=0, max=20, help="Traces of each end; 0: none.")] = 3,
    record: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The record of the comparison to explain (default: the newest stored one of the "
            "same two).",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the two first, as `compare` does.")
    ] = False,
    anyway: Anyway = False,
    outputs: Outputs,
) -> None:
    """Say why one commit is slower than another: what differs besides the time.

    It looks at the files, the packages and the variables of both ends, at exact counters of
    kvtrail's engine, and at traces taken in turns, which it joins by kernel or operator. At most
    three causes are named, those that explain the change best; what is within noise is not named.
    The change is that of the newest comparison stored of the same two. Exit code 0: it was looked,
    whether or not a cause was found; 5: a commit cannot be measured; 1: a failure; 2: refused; 130:
    interrupted.
    """
    if compare and record is not None:
        raise Refused("--compare makes a record, and --record names one; give one of them.")
    files = outputs.files()
    choice = asked.choice(command, metric, near=(base, head))
    chosen = choice.subject("explain")
    ends = ends_of(chosen, (base, head), files.console)
    if compare:
        record = _compared(chosen, ends, files)
    how = MeasuringOptions(anyway=anyway)
    Explaining(chosen, ends, choice.words(), record, files, how, traces).answer()


def _compared(
    subject: DeclaredSubject, ends: Sequence[tuple[str, Commit]], files: TableFiles
) -> Path:
    """Compare the two as `compare` does; where the record is."""
    beside = TableFiles(record=STANDARD_OUTPUT if STANDARD_OUTPUT in files else None)
    comparing = Comparing(subject, ends, ComparisonPlan(), beside, MeasuringOptions(anyway=True))
    code = comparing.settle()
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return comparing.show(code, None)


class Explaining(Session):
    """One explanation from its first look to its record.

    `ends` are what the user calls base and head, and what they are; `options` name the subject.
    `record` is that of the comparison to explain; None: the newest stored one.
    """

    keeps_pairs = False
    _found: Explanation

    def __init__(
        self,
        subject: DeclaredSubject,
        ends: Sequence[tuple[str, Commit]],
        options: Sequence[str],
        record: Path | None,
        files: TableFiles,
        how: MeasuringOptions,
        traces: int,
    ) -> None:
        (_, self._base), (_, self._head) = self._ends = ends
        settings = {
            "base": self._base.to_json(),
            "head": self._head.to_json(),
            "benchmarks": [metric.name for metric in subject.metrics],
        }
        super().__init__("explain", settings, subject, files, how)
        self._traces = traces
        # The ends as anybody can name them, wherever HEAD is.
        names = [name if name == WORKING_TREE else end.short for name, end in ends]
        self._asked = shlex.join([*names, *options])
        self._effect = known_effect((self._base.hash, self._head.hash), subject, record)

    def names(self) -> Sequence[str]:
        return [commit.hash for _, commit in self._ends]

    def begin(self) -> list[str]:
        said = [
            f"{role} {commit.short} {commit.subject}".rstrip()
            for role, commit in (("base", self._base), ("head", self._head))
        ]
        if self._effect is None:
            said.append(
                f"No comparison of these two is stored; `kvtrail compare {self._asked}` measures "
                f"how much slower the head is, and --compare does so first."
            )
        return said

    def source(self) -> AbstractContextManager[None]:
        # Both ends are looked at in turn.
        return nullcontext()

    def measure(self, source: None) -> ExitCode:
        ends = self._subject, self._base, self._head
        looking = Looking(*ends, self._effect, self._traces, self._console)
        self._found = looking.run(anyway=self._how.anyway)
        self._record.notes += self._found.notes
        return ExitCode.GOOD

    def print_answer(self) -> None:
        found, answer = self._found, self._found.answer()
        self._console.print()
        self._console.print(found.headline(), style="bold")
        print_sentences(self._console, answer, "bold")
        versus = f"{described(self._head)} against {described(self._base)}"
        page = self._issue(
            found.headline() if self._effect is None else f"Why: {found.headline()}",
            # The causes come before the table that they are taken from.
            "\n\n".join([versus, *map(inline, answer)]),
            [found.table(None)] if found.clues else [],
            [*found.context(_ON_PAGE), *found.notes],
            lasting_names(self._ends),
        )
        self._files.show(*([found.table()] if found.clues else []), page=page)
        print_sentences(self._console, [*found.context(), *found.notes])

    def results(self) -> dict[str, Any]:
        return {} if self._ending else self._found.to_json()
