"""`bisect GOOD BAD`: which commit made a benchmark slower, or faster, or gave another result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from asv_bench.bisect.finding import THOROUGH, Direction, Outcome, SearchPlan
from asv_bench.compare.checks import first_difference
from asv_bench.errors import Refused, TimeIsUp
from asv_bench.git.repository import WORKING_TREE, kind_of, short
from asv_bench.measure.log import Logged
from asv_bench.measure.samples import CommitUnusable, Metric, RoundSource, SampleFailed, judged
from asv_bench.output.console import Progress, print_sentences
from asv_bench.output.table import Column, Table
from asv_bench.session import options
from asv_bench.session.bisecting import BY_OUTCOME, Bisecting, CommitRange, SearchingFiles
from asv_bench.session.exit_codes import ExitCode
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject

LIVES = 2
"""Of both ends, and of the commit that is named and the one before it."""
SAME, OTHER = "same", "other"
_COLUMNS = (
    Column("subject", "commit and subject", kind="text"),
    Column("commit", "commit", kind="data"),
    Column("result", "result", kind="text"),
)


class _Unstable(Exception):
    """The good end gave two results; the message says how they differ."""


@dataclass(frozen=True, slots=True)
class ResultFinding:
    """The answer."""

    outcome: Outcome
    check: str
    good: str
    bad: str
    reason: str  # a clause that says why the outcome is what it is
    commit: str = ""  # the first with another result; "": none is named
    what: str = ""  # how its result differs first
    suspects: tuple[str, ...] = ()  # the commits that it may be, in their order


class BisectingResults(Judging):
    """A search for the first commit with another result than the good end's, by halving.

    Every life of a commit runs beside one of the good end, so that a result that differs from life
    to life is seen. A commit that cannot be measured is left out, and its neighbour is tried. The
    commit that is found is looked at again, and the one before it.
    """

    finding: ResultFinding | None = None

    def __init__(self, subject: DeclaredSubject, among: CommitRange, check: Metric) -> None:
        super().__init__("bisect", {**among.to_json(), "check": check.name}, subject)
        self._range, self._check = among, check
        self._good, self._hashes = among.good, among.hashes
        self._seen: dict[str, str] = {}
        """Of each commit that was looked at: `SAME`, `OTHER`, or why it cannot be."""
        self._what: dict[str, str] = {}  # how results differ
        self._right: tuple[str, ...] = ()  # the result of the good end

    def _is_clear(self) -> bool:
        return self.finding is not None and self.finding.outcome is not Outcome.INCONCLUSIVE

    def names(self) -> Sequence[str]:
        return [self._good, *self._hashes]

    def begin(self) -> list[str]:
        return [self._range.sentence(f"another result of {self._check.name}")]

    def measure(self, source: RoundSource) -> ExitCode:
        """Look at the ends, search, and look again at the commit and the one before it.

        Raises CommitUnusable where an end cannot be measured, or leaves no such result.
        """
        self._source = Logged(source, self._log, "results")
        what = "looking at the ends, then between"
        with Progress(self._console, what, None, "looks") as self._progress:
            self.finding = self._search()
        return BY_OUTCOME[self.finding.outcome]

    def _search(self) -> ResultFinding:
        hashes, low, high = self._hashes, -1, len(self._hashes) - 1
        reason = ""
        try:
            if not self._is_other(hashes[high]):
                return self._found(Outcome.NONE, "the ends give the same result")
            usable = list(range(high))
            while left := [one for one in usable if low < one < high]:
                middle = left[len(left) // 2]
                try:
                    is_other = self._is_other(hashes[middle], lives=1)
                except CommitUnusable as error:
                    self._look(hashes[middle], error.reason)
                    usable.remove(middle)
                    continue
                low, high = (low, middle) if is_other else (middle, high)
            before = hashes[low] if low >= 0 else ""
            named = hashes[high]
            is_next = high == low + 1
            if is_next and self._is_other(named) and not (before and self._is_other(before)):
                return self._found(Outcome.FOUND, "looked at again", named, (named,))
            reason = "between them no commit can be measured"
            if is_next:
                reason = "looked at again, it was not the first with another result"
        except _Unstable as error:
            reason = f"the good end gives different results: {error}"
        except KeyboardInterrupt as error:
            self._stopped = error
            reason = "time was up" if isinstance(error, TimeIsUp) else "it was interrupted"
        return self._found(Outcome.INCONCLUSIVE, reason, suspects=tuple(hashes[low + 1 : high + 1]))

    def _found(
        self, outcome: Outcome, reason: str, commit: str = "", suspects: tuple[str, ...] = ()
    ) -> ResultFinding:
        ends, what = (self._good, self._hashes[-1]), self._what.get(commit, "")
        return ResultFinding(outcome, self._check.name, *ends, reason, commit, what, suspects)

    def _look(self, commit: str, seen: str) -> None:
        """Say and keep what a look showed."""
        self._seen[commit] = seen
        print_sentences(self._console, [f"{short(commit)}: {seen}"])
        self._progress.show(len(self._seen), "searching")

    def _is_other(self, commit: str, lives: int = LIVES) -> bool:
        """Whether a commit gives another result than the good end in any of so many lives."""
        found = SAME
        for number in range(lives):
            base, head = self._results_beside(commit, number)
            self._right = self._right or base
            if base != self._right:
                raise _Unstable(first_difference(self._right, base))
            if head != base:
                found = OTHER
                self._what[commit] = first_difference(base, head)
        self._look(commit, found)
        return found == OTHER

    def _results_beside(self, commit: str, number: int) -> list[tuple[str, ...]]:
        """Of a life of the good end, and of one of the commit."""
        name, ends = self._check.name, [self._good, commit]
        for one in ends:
            if (absence := self._source.prepare(one).get(name)) is not None:
                raise CommitUnusable(one, absence.reason, is_lacking=not absence.has_failed)
        order = (1, 0) if number % 2 else (0, 1)
        try:
            measured = self._source.round(ends, order, [name])
        except SampleFailed as error:
            raise CommitUnusable(error.commit, error.reason) from None
        return [of_cell[name].results for of_cell in measured.readings]

    def print_answer(self) -> None:
        assert self.finding is not None
        rows = [
            (f"{one.short} {one.subject}".rstrip(), one.hash, self._seen[one.hash])
            for one in self._range.commits
            if one.hash in self._seen
        ]
        title = f"{self._check.name}: results beside that of {short(self._good)}, the good end"
        table, answer = Table(_COLUMNS, rows, title), self._answer(self.finding)
        self._record.results["answer"] = answer
        print_sentences(self._console, [answer], "bold")
        remarks, on_page = self._record.warnings, self._range.on_page()
        page = self._issue(heading=answer, tables=[table], remarks=remarks, **on_page)
        self._files.show(table, page=page)

    def _answer(self, finding: ResultFinding) -> str:
        kind = kind_of(self._good)
        if finding.outcome is Outcome.NONE:
            return f"no {kind} with another result of {finding.check} is named: {finding.reason}."
        if finding.outcome is Outcome.FOUND:
            [commit] = (one for one in self._range.commits if one.hash == finding.commit)
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
        return {"finding": asdict(self.finding), "seen": self._seen, **found}


def bisect(
    good: Annotated[
        str,
        typer.Argument(
            help="A commit without the change: a hash, branch, tag or HEAD~9; or a label."
        ),
    ],
    bad: Annotated[
        str | None,
        typer.Argument(help="A later one, with the change; --files needs the one commit only."),
    ] = None,
    command: options.MeasuredCommand = None,
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    check: Annotated[
        str | None,
        typer.Option(
            help="Find the first commit with another result of this [check] of kvtrail.toml, or "
            "with a worse number.",
        ),
    ] = None,
    improvement: Annotated[
        bool, typer.Option("--improvement", help="Find what made it faster instead.")
    ] = False,
    certain: Annotated[
        float,
        typer.Option(
            min=0.51,
            max=0.999,
            callback=options.a_number,
            help="Probability at which a commit is confirmed.",
        ),
    ] = SearchPlan().certain,
    most_pairs: Annotated[
        int, typer.Option(min=1, max=options.MOST, help="Pairs of the search at most.")
    ] = SearchPlan().most_pairs,
    inside: Annotated[
        bool,
        typer.Option(
            "--inside",
            help="Search also where the ends do not differ, for a change that is taken back.",
        ),
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Go on to every step, also when those confirmed explain what the ends differ by, "
            "and measure each commit, for changes that cancel each other.",
        ),
    ] = False,
    by_files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="Search the files that differ between the two, instead of the commits; of one "
            "commit, those that it changes.",
        ),
    ] = False,
    how: options.MeasuringOptions,
    files: options.AnswerOutputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Find the commits after GOOD, up to BAD, that made a benchmark slower.

    --metric has to find exactly one metric. The two ends are compared first; without a regression
    between them nothing is searched, unless with --inside or --all. The largest step comes first,
    and the search ends when what it confirmed explains the difference of the ends, but for a tenth;
    --all goes on, and measures each commit, as changes may cancel each other. A slope is told from
    a step. Commits that hold the same files in what is measured as the one before are stepped over.
    The search runs along first parents: a merge counts as one commit, and the answer has the
    command that goes into it.
    Along an axis of labels the first label is found. bisect COMMIT --files finds the files of a
    commit that did it. Exit code 3: the commit was found and confirmed; 0: no regression, or the
    same at both ends; 4: inconclusive; 5: the benchmark does not exist at one of the ends; 1: a
    failure; 2: refused; 130: interrupted, and the same command goes on where it stopped.
    """
    choice = asked.choice(command, benchmark, how, near=(good, bad))
    chosen = choice.subject("bisect")
    checked = None if check is None else chosen.choose_check(check)
    chosen.checks = []  # others are not shown, and to score them takes long
    if (count := len(asked_for := judged(chosen.metrics))) > 1:
        shown = ", ".join(metric.name for metric in asked_for[:6])
        said = " ".join(["--metric", *map(repr, benchmark or ())])
        raise Refused(f"{said} finds {count} metrics, and one is bisected at a time: {shown}.")
    plan = SearchPlan(
        comparison=THOROUGH.with_margin(chosen.metrics[0].margin or how.margin / 100),
        certain=certain,
        most_pairs=most_pairs,
        is_inside=inside or every,
        is_all=every,
    )
    if WORKING_TREE in (good, bad):
        raise Refused("bisect searches commits, and . is none: commit what is to be searched.")
    direction = Direction.IMPROVEMENT if improvement else Direction.REGRESSION
    if bad is None:
        if not by_files:
            raise Refused("bisect needs two commits or labels: kvtrail bisect GOOD BAD.")
        good, bad = options.parent_of(chosen, good), good
    ends = options.ends_of(chosen, (good, bad), files.console)
    if by_files:
        SearchingFiles(chosen, ends, direction, plan).with_options(files, how).answer()
        return
    good_hash, bad_hash = (commit.hash for _, commit in ends)
    commits = chosen.axis.between(good_hash, bad_hash)
    if merges := sum(len(commit.parents) > 1 for commit in commits):
        files.console.print(
            f"{merges} of {len(commits)} commits are merges: only first parents are searched, and "
            f"a merge counts as one commit with all that it brought in"
        )
    is_same = not (how.anyway or plan.is_inside) and chosen.are_same(good_hash, bad_hash)
    if not (how.anyway or is_same):
        hashes = [commit.hash for commit in commits]
        found = options.differing(chosen, good_hash, hashes, files.console)
        is_same, commits = not found, [one for one in commits if one.hash in found] or commits
    among = CommitRange((good, bad), good_hash, commits)
    if checked is not None and checked.check == "equal":
        BisectingResults(chosen, among, checked).with_options(files, how).answer()
        return
    bisecting = Bisecting(chosen, among, direction, plan, options=choice.words(), is_same=is_same)
    bisecting.with_options(files, how).answer()
