"""Confirming changes of stored histories by comparing the commits around them."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeAlias

from asv_bench.compare.comparison import Headway
from asv_bench.compare.confirmation import Standing, Suspicion, confirm
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import NothingSelected
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import GitError
from asv_bench.history.change_points import Change
from asv_bench.history.histories import Histories
from asv_bench.history.standing import (
    ANSWERS,
    JudgedChange,
    change_table,
    keep_answers,
    read_acknowledged,
    reason_for,
)
from asv_bench.history.stored_changes import StoredChanges, is_with
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import print_sentences
from asv_bench.output.markdown import inline
from asv_bench.output.progress import Progress
from asv_bench.output.record import TableFiles
from asv_bench.process.machine import machine_facts
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions
from asv_bench.session.session import Session
from asv_bench.subjects.choose import Choice
from asv_bench.subjects.declared import DeclaredSubject

SourceOf: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[RoundSource]]
INTERRUPTED = "Interrupted: some changes were not compared to the end, or not at all."


class Confirming(Session):
    """Which changes of stored histories stand, once the commits around them are compared.

    At most so many are compared, of those that were measured on this machine with this software.
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
        acknowledged = read_acknowledged(histories.folder)
        self._reasons = {change: reason_for(change, acknowledged) for change in stored.found}
        here = machine_facts()
        versions = here.python, here.torch, here.triton
        open_here = (
            change
            for change, reason in self._reasons.items()
            if not reason and change.machine == here.name and is_with(change.environment, *versions)
        )
        self._wanted = list(islice(open_here, most))
        self._suspicions: dict[Change, Suspicion] = {}
        self._answers: dict[Suspicion, Comparison] = {}
        self._is_interrupted = False

    def known(self) -> ExitCode | None:
        """See `Session`: no change is to be compared, or nothing differs between its commits."""
        self._suspect()
        if not self._how.anyway:
            self._answers |= self._same()
        return None if self._left() else self._code()

    def _suspect(self) -> None:
        """Find what to compare for each change; say of which the benchmark is gone."""
        if not self._wanted:
            return
        newest = self._wanted[0]
        names = sorted({re.escape(change.series.benchmark) for change in self._wanted})
        self._subject.near = [newest.since.hash, newest.until.hash]
        # Stored results are read without the quotes of texts (`asv_results.Series`).
        today: dict[str, str] = {}
        with contextlib.suppress(NothingSelected):
            # Names of benchmarks may have parameters behind them.
            self._choice.choose(self._subject, [rf"^({'|'.join(names)})(\(|$)"])
            today = {_unquoted(metric.name): metric.name for metric in self._subject.metrics}
        for change in self._wanted:
            name = change.series.name
            found = today.get(_unquoted(name))
            if found is not None:
                self._suspicions[change] = Suspicion(change.since.hash, change.until.hash, found)
                continue
            gone = (
                f"today's benchmarks have no {name}: the change is of a benchmark that was renamed "
                f"or removed, and cannot be measured again."
            )
            print_sentences(self._console, [gone])

    def _left(self) -> list[Suspicion]:
        """What is to be compared."""
        return [one for one in self._suspicions.values() if one not in self._answers]

    def names(self) -> Sequence[str]:
        return list(dict.fromkeys(end for one in self._left() for end in (one.before, one.after)))

    def devices(self) -> Sequence[str]:
        """See `Session`: where nothing is compared it needs none."""
        return super().devices() if self._left() else ()

    def begin(self) -> list[str]:
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

    def _judged(self) -> list[JudgedChange]:
        answers = {change: self._answers.get(one) for change, one in self._suspicions.items()}
        return [
            JudgedChange(change, answers.get(change), reason)
            for change, reason in self._reasons.items()
        ]

    def _code(self) -> ExitCode:
        """A confirmed regression outweighs a comparison that failed."""
        if self._is_interrupted:
            return ExitCode.INTERRUPTED
        judged = self._judged()
        if any(entry.standing is Standing.REGRESSION for entry in judged):
            return ExitCode.REGRESSION
        if any(entry.answer and entry.answer.verdict is Verdict.FAILED for entry in judged):
            return ExitCode.FAILED
        return ExitCode.GOOD

    def print_answer(self) -> None:
        """See `Session`; the answers are kept, and the page is built anew."""
        judged, console = self._judged(), self._console
        self._record.notes += self._stored.notes
        if self._is_interrupted:
            console.print(INTERRUPTED)
        if judged or self._files.markdown or self._files.csv:
            page = self._page(judged) if self._record.samples else None
            self._files.show(change_table(judged), page=page)
        else:
            console.print("no series moved by 1 % or more")
        reasons = [entry.answer.reason for entry in judged if entry.answer]
        print_sentences(console, filter(None, [*reasons, *(one.bisection for one in judged)]))
        keep_answers(self._histories.folder / ANSWERS, self._record.started, judged)
        # Not at the top: every command would wait for jinja2.
        from asv_bench.pages.site import build_page

        console.print(f"page: {build_page(self._histories, console)}")

    def _page(self, judged: Sequence[JudgedChange]) -> str:
        """What was compared as text for an issue."""
        counts = Counter(str(entry.standing) for entry in judged)
        return self._issue(
            heading=", ".join(f"{count} {standing}" for standing, count in counts.items()),
            commits=f"Changes in the stored histories of {inline(self._subject.name)}",
            tables=[change_table(judged)],
            remarks=[*self._stored.notes, *self._record.warnings],
            names={},
        )

    def results(self) -> dict[str, Any]:
        return {
            "interrupted": self._is_interrupted,
            "changes": [entry.to_json() for entry in self._judged()],
        }


def _unquoted(name: str) -> str:
    return re.sub("['\"]", "", name)
