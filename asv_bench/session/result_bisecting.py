"""Bisections for another result, from their first process to their record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asv_bench.bisect.finding import Outcome
from asv_bench.bisect.result_search import ResultFinding, ResultSearch
from asv_bench.git.repository import Commit, kind_of, short
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import Metric, RoundSource
from asv_bench.output.console import print_sentences
from asv_bench.output.issue_text import described
from asv_bench.output.markdown import inline
from asv_bench.output.progress import Progress
from asv_bench.output.table import Column, Table
from asv_bench.session.bisecting import BY_OUTCOME
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject

_COLUMNS = (
    Column("subject", "commit and subject", kind="text"),
    Column("commit", "commit", kind="data"),
    Column("result", "result", kind="text"),
)


class BisectingResults(Judging):
    """One search for the first commit with another result than the good end's."""

    finding: ResultFinding | None = None

    def __init__(
        self,
        subject: DeclaredSubject,
        check: Metric,
        words: tuple[str, str],  # what the user calls the two ends
        good: str,
        commits: list[Commit],
    ) -> None:
        listed = [commit.to_json() for commit in commits]
        settings = {"good": good, "commits": listed, "check": check.name}
        super().__init__("bisect", settings, subject)
        self._check, self._words, self._good, self._commits = check, words, good, commits
        self._seen: dict[str, str] = {}

    def _is_clear(self) -> bool:
        return self.finding is not None and self.finding.outcome is not Outcome.INCONCLUSIVE

    def names(self) -> Sequence[str]:
        return [self._good, *(commit.hash for commit in self._commits)]

    def begin(self) -> list[str]:
        first, last = self._commits[0].short, self._commits[-1].short
        count, kind = len(self._commits), kind_of(self._good)
        return [
            f"bisecting {count} {kind}s, {first} to {last}, for another result of "
            f"{self._check.name}"
        ]

    def measure(self, source: RoundSource) -> ExitCode:
        with Progress(self._console, "looking at the ends, then between", None, "looks") as bar:

            def on_look(commit: str, seen: str) -> None:
                self._seen[commit] = seen
                print_sentences(self._console, [f"{short(commit)}: {seen}"])
                bar.show(len(self._seen), "searching")

            logged = Logged(source, self._log, "results")
            hashes = [commit.hash for commit in self._commits]
            search = ResultSearch(logged, self._good, hashes, self._check, on_look)
            self.finding = search.run()
        self._stopped = search.stopped
        return BY_OUTCOME[self.finding.outcome]

    def print_answer(self) -> None:
        assert self.finding is not None
        rows = [
            (f"{one.short} {one.subject}".rstrip(), one.hash, self._seen[one.hash])
            for one in self._commits
            if one.hash in self._seen
        ]
        title = f"{self._check.name}: results beside that of {short(self._good)}, the good end"
        table, answer = Table(_COLUMNS, rows, title), self._answer(self.finding)
        print_sentences(self._console, [answer], "bold")
        (good, bad), last = self._words, self._commits[-1]
        page = self._issue(
            heading=answer,
            commits=f"{len(self._commits)} {kind_of(self._good)}s after "
            f"**{inline(short(self._good))}**, up to {described(last)}",
            tables=[table],
            remarks=self._record.warnings,
            names={good: (short(self._good),), bad: (last.short,)},
        )
        self._files.show(table, page=page)

    def _answer(self, finding: ResultFinding) -> str:
        kind = kind_of(self._good)
        if finding.outcome is Outcome.NONE:
            return f"no {kind} with another result of {finding.check} is named: {finding.reason}."
        if finding.outcome is Outcome.FOUND:
            [commit] = (one for one in self._commits if one.hash == finding.commit)
            named = f"{commit.short} {commit.subject}".rstrip()
            return f"first {kind} with another result: {named}; {finding.check}: {finding.what}."
        ends = dict.fromkeys(map(short, (*finding.suspects[:1], *finding.suspects[-1:])))
        return (
            f"inconclusive: {finding.reason}; the first {kind} with another result of "
            f"{finding.check} is among {' to '.join(ends)}."
        )

    def results(self) -> dict[str, Any]:
        if self.finding is None:
            return {"finding": None}
        found = {"outcome": "other result"} if self.finding.outcome is Outcome.FOUND else {}
        return {"finding": self.finding.to_json(), "seen": self._seen, **found}
