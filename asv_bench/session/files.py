"""`bisect --files`: which files of a change made a benchmark slower, or faster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from asv_bench.bisect.account import file_lines, file_table, try_line
from asv_bench.bisect.file_search import FileFinding, FileSearch, FileTry
from asv_bench.bisect.finding import Direction, SearchPlan
from asv_bench.compare.comparison import Headway
from asv_bench.errors import Refused
from asv_bench.git.repository import Commit
from asv_bench.git.trees import FileChange, PartCommits, changes_between
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Pair, RoundSource
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import described, lasting_names
from asv_bench.output.progress import Progress
from asv_bench.output.record import TableFiles
from asv_bench.session.bisecting import BY_OUTCOME, Searching
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.options import MeasuringOptions
from asv_bench.subjects.declared import DeclaredSubject


class SearchingFiles(Searching):
    """One search among the files of a change, from its first process to its record."""

    def __init__(
        self,
        subject: DeclaredSubject,
        # What the user calls the two commits, without the change and with it, and what they are.
        ends: Sequence[tuple[str, Commit]],
        direction: Direction,
        plan: SearchPlan,
        files: TableFiles,
        how: MeasuringOptions,
    ) -> None:
        if subject.labels:
            raise Refused("labels have no files of their own: --files takes commits.")
        self._ends = ends
        (_, self._good), (_, self._bad) = ends
        self._scratch = ExitStack()
        self._commits: dict[tuple[int, ...], str] = {}
        self._changes, self._left_out = self._find_changes(subject)
        self._labels = [change.label for change in self._changes]
        among = {
            "good": self._good.to_json(),
            "bad": self._bad.to_json(),
            "files": self._labels,
        }
        super().__init__(subject, among, direction, plan, files, how)
        self.finding: FileFinding | None = None

    def _find_changes(self, subject: DeclaredSubject) -> tuple[list[FileChange], int]:
        """The changes that matter to what is measured, and how many do not."""
        repository = subject.repository_of(self._good.hash)
        all_changes = changes_between(self._good.hash, self._bad.hash, repository)
        scratch = self._scratch.enter_context(tempfile.TemporaryDirectory(prefix="kvtrail-"))
        self._parts = PartCommits(self._good.hash, repository, Path(scratch))
        found = []
        for change in all_changes:
            commit = self._parts.commit([change])
            subject.add(commit, self._parts.repository)
            if not subject.are_same(self._good.hash, commit):
                found.append(change)
        # Sorting keeps the order of each kind.
        return sorted(found, key=lambda change: change.is_prose), len(all_changes) - len(found)

    def _commit_of(self, numbers: tuple[int, ...]) -> str:
        """The good commit with these changes made."""
        if not numbers:
            return self._good.hash
        if len(numbers) == len(self._changes):
            return self._bad.hash
        if numbers not in self._commits:
            commit = self._parts.commit([self._changes[number] for number in numbers])
            self._subject.add(commit, self._parts.repository)
            self._commits[numbers] = commit
        return self._commits[numbers]

    def known(self) -> ExitCode | None:
        """See `Session`: there is nothing to divide."""
        return None if len(self._changes) > 1 else ExitCode.GOOD

    def settle(self) -> ExitCode:
        """See `Session`: parts of the change are not needed any more then."""
        with self._scratch:
            return super().settle()

    def names(self) -> Sequence[str]:
        """See `Session`."""
        return [self._good.hash, self._bad.hash]

    def begin(self) -> list[str]:
        """See `Session`."""
        what = (
            f"searching {len(self._changes)} files of {self._bad.short} for "
            f"{self._direction.phrase}"
        )
        return [what, *self._apart(), *super().begin()]

    def measure(self, source: RoundSource) -> ExitCode:
        """See `Session`."""
        bar = Progress(self._console, "warming up (each end once), then measuring", None, "pairs")

        def on_pair(part: str, now: Headway, pairs: Mapping[str, Pair]) -> None:
            measured = [{"stage": part, **pair.to_json()} for pair in pairs.values()]
            self._record.samples.extend(measured)
            bar.show(now.kept, f"comparing ({part})")

        def on_try(tried: FileTry) -> None:
            print_sentences(self._console, [try_line(tried, self._labels)])

        with bar:
            self.finding = FileSearch(
                lambda part: Logged(source, self._log, part),
                self._commit_of,
                self._good.hash,
                self._bad.hash,
                len(self._changes),
                self._metric,
                likely=sum(not change.is_prose for change in self._changes),
                direction=self._direction,
                plan=self._plan,
                pool=self._pool,
                on_pair=on_pair,
                on_try=on_try,
            ).run()
        return BY_OUTCOME[self.finding.outcome]

    def print_answer(self) -> None:
        """Print the parts that were compared, and the answer."""
        answers = self._answers()
        if self.finding is not None:
            self._files.show(file_table(self.finding, self._labels), page=self._page(answers))
        first, *others = answers
        print_sentences(self._console, [first], "bold")
        print_sentences(self._console, others)

    def _answers(self) -> list[str]:
        if self.finding is not None:
            return file_lines(self.finding, self._labels)
        if not self._changes:
            return [f"{self._bad.short} changes no file that matters to what is measured."]
        only = self._labels[0]
        return [f"{self._bad.short} changes one file only, {only}: there is nothing to divide."]

    def _apart(self) -> list[str]:
        """What is not searched, as it does not matter."""
        number = self._left_out
        files = "1 file is" if number == 1 else f"{number} files are"
        return [f"{files} left out, being no part of what is measured"] if number else []

    def _page(self, answers: Sequence[str]) -> str:
        """The answer as text for an issue."""
        assert self.finding is not None
        return self._issue(
            heading=f"{self._benchmark}: {answers[0]}",
            commits=f"{described(self._bad)} against {described(self._good)}",
            tables=[file_table(self.finding, self._labels)],
            remarks=[*answers[1:], *self._apart(), *self._record.warnings],
            names=lasting_names(self._ends),
        )

    def results(self) -> dict[str, Any]:
        """See `Session`."""
        return {"finding": None if self.finding is None else self.finding.to_json()}
