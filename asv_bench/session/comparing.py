"""One comparison of commits, from its first process to its record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from asv_bench.compare import tables
from asv_bench.compare.checks import CheckAnswer, in_words
from asv_bench.compare.comparison import CommitComparison, Headway
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import WORKING_TREE, Commit
from asv_bench.measure.log import Logged
from asv_bench.measure.rounds import Design, in_a_row, named, two_cells
from asv_bench.measure.samples import CommitUnusable, Pair, RoundSource
from asv_bench.measure.software import differences
from asv_bench.output.console import Progress, Verbosity, print_sentences, print_table, verbosity
from asv_bench.output.issue_text import described, lasting_names, place_of
from asv_bench.output.table import Table, percentage
from asv_bench.session.exit_codes import GATES, ExitCode, exit_code, gate_text
from asv_bench.session.session import Judging
from asv_bench.subjects.declared import DeclaredSubject
from asv_bench.words import processes_apart


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What comparisons come to."""

    heading: str
    sentences: Sequence[str]  # the whole answer, the heading among them
    code: ExitCode
    results: Mapping[str, Any]  # for the record

    def beside(
        self, checks: Sequence[CheckAnswer], ends: tuple[str, str], gate: Collection[Verdict]
    ) -> Conclusion:
        """The same with what the checks say; those of the ends decide, where there are several."""
        if not checks:
            return self
        deciding = [one for one in checks if (one.base, one.head) == ends] or checks
        heading = f"{self.heading}, {in_words(deciding)}"
        said = [heading if one == self.heading else one for one in self.sentences]
        code = exit_code([one.verdict for one in deciding], gate)
        return replace(
            self,
            heading=heading,
            sentences=[*said, *(one.sentence for one in checks)],
            code=code if code is ExitCode.OTHER_RESULT else self.code,
            results={**self.results, "checks": list(map(asdict, checks))},
        )


Conclude = Callable[[Sequence[Comparison], Mapping[str, Sequence[Pair]]], Conclusion]
"""Of comparisons, and of the pairs that may be judged by, by benchmark."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a verb asks about commits, beside what all comparisons have in common."""

    command: str
    # What the user calls the commits; the first is the base, the last the head.
    given: Sequence[tuple[str, Commit]]
    design: Design
    conclude: Conclude
    known: Sequence[Comparison] = ()  # answers that need no measuring
    roles: Sequence[str] = ("base", "head")
    where: str = ""  # ends the sentence that says what is measured
    details: Mapping[str, Any] = field(default_factory=dict)  # for the record
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see `repeating`
    # Those that name the subject, for the command that says why the head is slower; None: nothing
    # is said of that.
    options: Sequence[str] | None = None
    gate: Collection[Verdict] = GATES  # verdicts of checks that have codes of their own
    # Several that the base is compared with, by the names of contrasts; empty: the last alone.
    heads: Mapping[str, Commit] = field(default_factory=dict)


def of_heads(
    subject: DeclaredSubject,
    given: Sequence[tuple[str, Commit]],
    *,
    anyway: bool,
    gate: Collection[Verdict] = (),
    options: Sequence[str] | None = None,
) -> Question:
    """Whether the heads are slower than the base; `gate` has verdicts with codes of their own."""
    (_, base), *others = given
    is_row, heads = len(others) > 1, dict[str, Commit]()
    for word, head in others:
        name = head.short if word in (WORKING_TREE, head.hash) else word
        name = f"{name} ({len(heads) + 1})" if name in heads else name
        heads[name if is_row else ""] = head
    same = [one for one in heads if not anyway and subject.are_same(base.hash, heads[one].hash)]
    known = [
        Comparison.of_same(named(metric.name, one), base.hash, heads[one].hash, metric.unit)
        for metric in subject.metrics
        for one in same
    ]
    told = [{"name": name, **one.to_json()} for name, one in heads.items()]
    row = in_a_row(base.hash, {one: heads[one].hash for one in heads if one not in same})
    return Question(
        "compare",
        given,
        row if is_row else two_cells(base.hash, head.hash),
        by_gate(gate),
        known,
        roles=("base", *["head"] * len(heads)),
        details={"heads": told} if is_row else {},
        options=options,
        gate=gate,
        heads=heads if is_row else {},
    )


def by_gate(
    gate: Collection[Verdict], more: Callable[[Sequence[Comparison]], list[str]] = lambda _: []
) -> Conclude:
    """How many benchmarks have which verdict, and `more` sentences."""

    def conclude(comparisons: Sequence[Comparison], _: Mapping[str, Sequence[Pair]]) -> Conclusion:
        heading = tables.headline(comparisons)
        # Of a control an open answer decides nothing.
        open_ones = Verdict.INCONCLUSIVE, Verdict.EQUIVALENT
        decide = [one for one in comparisons if not (one.control and one.verdict in open_ones)]
        verdicts = [one.verdict for one in decide or list(comparisons)]
        sentences = [heading, *more(comparisons)]
        return Conclusion(heading, sentences, exit_code(verdicts, gate), {"gate": gate_text(gate)})

    return conclude


def print_verdicts(console: Console, table: Table, comparisons: Sequence[Comparison]) -> None:
    """Print the table of comparisons and their reasons."""
    print_table(console, table)
    for reason in dict.fromkeys(entry.reason for entry in comparisons if entry.reason):
        whose = [entry.benchmark for entry in comparisons if entry.reason == reason]
        is_own = len(whose) == 1 < len(comparisons)
        console.print(f"{whose[0]}: {reason}" if is_own else reason)


class Comparing(Judging):
    """A question about commits that comparing them answers."""

    _conclusion = Conclusion("", (), ExitCode.FAILED, {})  # none, where it ended before it began

    def __init__(self, subject: DeclaredSubject, question: Question, plan: ComparisonPlan) -> None:
        self._question = question
        self._commits = [commit for _, commit in question.given]
        self._base, self._head = self._commits[0], self._commits[-1]
        heads = {f"{name}: ": head for name, head in question.heads.items()}
        self._heads = heads or {"": self._head}  # by how a sentence about each begins
        # Of several heads each has a part of the error.
        self._plan_of_rounds = replace(plan, alpha=plan.alpha / max(1, len(question.heads)))
        self._plan = plan
        self._cells = len(question.design.cells)
        self._metric_of = question.design.named(subject.metrics)
        with_checks = [*subject.metrics, *subject.checks]
        self._comparison = CommitComparison(question.design, with_checks, plan)
        self._comparisons: list[Comparison] = []
        self._why: list[str] = []
        settings = {
            "base": self._base.to_json(),
            "head": self._head.to_json(),
            "benchmarks": list(self._metric_of),
            "margins": self._comparison.margins,
            "plan": plan.to_json(),
            **question.details,
        }
        super().__init__(question.command, settings, subject)

    def sentence(self) -> str:
        return super().sentence() + self._question.where

    def known(self) -> ExitCode | None:
        """See `Session`: nothing that is measured differs."""
        if not self._metric_of.keys() <= {one.benchmark for one in self._question.known}:
            return None
        self._print_commits()
        return self._conclude([])

    def names(self) -> Sequence[str]:
        return self._question.design.cells

    def begin(self) -> list[str]:
        self._print_commits()
        known = self._noise.of([metric.name for metric in self._subject.metrics])
        self._comparison.pools = {
            name: known[metric.name]
            for name, metric in self._metric_of.items()
            if metric.name in known
        }
        return []

    def measure(self, source: RoundSource) -> ExitCode:
        """See `Session`: also after Ctrl-C, or where a commit is unusable, with what is known."""
        bar = Progress(
            self._console,
            "warming up (each commit once), then measuring",
            self._plan.cap,
            f"{'starts' if self._subject.work.life.pairs > 1 else 'pairs'} at most",
        )

        def on_pair(now: Headway, measured: Mapping[str, Pair]) -> None:
            if verbosity() is Verbosity.VERBOSE:
                for name, pair in measured.items():
                    effect = percentage(pair.effect, 2, signed=True)
                    why = f", discarded: {pair.discarded}" if pair.discarded else ""
                    line = f"pair {now.measured} of {name}: {effect}{why}"
                    print_sentences(self._console, [line])
            print_sentences(self._console, self._reaches(measured.values()))
            # Kept pairs take no time, and say nothing of the time that is left.
            if now.measured > self._log.restored:
                said = [
                    tables.estimate_text(now.so_far),
                    f"an answer is possible after {now.next_look}",
                ]
                bar.show(now.kept, f"comparing: {', '.join(filter(None, said))}")

        try:
            with bar:
                measured = self._comparison.run(Logged(source, self._log, "pairs"), on_pair)
        except (KeyboardInterrupt, CommitUnusable) as error:
            self._stopped = error if isinstance(error, KeyboardInterrupt) else None
            measured = self._comparison.answers_after(error)
        # Not pair by pair: an interruption would leave out one that the answer rests on.
        self._record.samples = [pair.to_json() for pair in self._comparison.pairs()]
        noise, kept = self._question.design.noise, self._comparison.kept_pairs
        if self._stopped is None and noise is not None:
            names = [metric.name for metric in self._subject.metrics]
            self._noise.add({name: kept(named(name, noise)) for name in names})
        return self._conclude(measured)

    def _advice(self) -> list[str]:
        """What a verdict takes where there is none, and what the CPU time says beside it."""
        option = "--pairs" if self._question.command == "compare" else "--rounds"
        others, devices, pairs = self._subject.others, len(self.devices()), self._pairs()
        said, beside = [], []
        for one in self._comparisons:
            plan = self._plan.for_one(one.benchmark, self._comparison.margins)
            said.append(
                tables.advice(one, pairs.get(one.benchmark, ()), plan, others, devices, option)
            )
            beside.append(tables.beside_cpu(one, others, plan))
        return list(filter(None, [*said, *beside]))

    def _is_clear(self) -> bool:
        return all(one.verdict is not Verdict.INCONCLUSIVE for one in self._comparisons)

    def _conclude(self, measured: Sequence[Comparison]) -> ExitCode:
        self._comparisons = [*measured, *self._question.known]
        conclusion = self._question.conclude(self._comparisons, self._pairs())
        checks, ends = self._comparison.checks() if measured else [], self._question.design.ends
        self._conclusion = conclusion.beside(checks, ends, self._question.gate)
        return self._conclusion.code

    def print_answer(self) -> None:
        """Show the table, the reasons and the answer in a line."""
        place = place_of(self._record.machine, self._subject.devices)
        title = f"{self._versus(lambda commit: commit.short)} on {place}"
        pairs = [pair for found in self._pairs().values() for pair in found]
        for begin, head in self._heads.items():
            of_head = [one for one in pairs if not begin or one.head.commit == head.hash]
            found = [*self._apart(head), *tables.clock_findings(of_head)]
            self._record.warn(self._console, [f"{begin}{sentence}" for sentence in found])
        margins = self._comparison.margins
        table = tables.comparison_table(self._comparisons, title, self._plan, margins)
        print_verdicts(self._console, table, self._comparisons)
        print_sentences(self._console, self._advice())
        unit = "s" if {metric.unit for metric in self._subject.metrics} == {"seconds"} else ""
        readings = (
            (f"{name} of {side} {reading.commit[:8]}", reading.value)
            for name, found in self._pairs().items()
            for pair in found
            for side, reading in (("base", pair.base), ("head", pair.head))
        )
        self._doubt(processes_apart(readings, unit))
        units = {metric.name: metric.unit for metric in self._subject.known}
        for begin, head in self._heads.items():
            lines = tables.others_lines(self._subject.others, (self._base.hash, head.hash), units)
            print_sentences(self._console, [f"{begin}{line}" for line in lines])
        print_sentences(self._console, self._conclusion.sentences, "bold")
        self._look_why()
        print_sentences(self._console, self._why)
        self._files.write(table, page=self._page())

    def _look_why(self) -> None:
        """Find out what differs besides time, where a head is slower: of several, the first."""
        options = self._question.options
        slower = {one.head for one in self._comparisons if one.verdict is Verdict.SLOWER}
        found = [one for one in self._heads.items() if one[1].hash in slower]
        if options is None or not found or self._stopped is not None:
            return
        begin, head = found[0]
        with self._looking() as why:
            self._why = [f"{begin}{line}" for line in why(self._base, head, options)]

    def _page(self) -> str:
        """The comparison as text for an issue or a pull request."""
        shown, heading = tables.worst_first(self._comparisons), self._conclusion.heading
        return self._issue(
            heading=heading,
            commits=self._versus(described),
            tables=[tables.comparison_table(shown, "", self._plan, self._comparison.margins)],
            remarks=[
                *(answer for answer in self._conclusion.sentences if answer != heading),
                *self._record.warnings,
                *(f"{one.benchmark}: {one.reason}" for one in shown if one.reason),
                *self._advice(),
                *([f"{self._why_stopped()} before its end."] if self._stopped else []),
                *self._why,
            ],
            names={**lasting_names(self._question.given), **self._question.names},
        )

    def results(self) -> dict[str, Any]:
        return {
            "answer": self._conclusion.heading or self._ending,
            "comparisons": list(map(asdict, self._comparisons)),
            "others": self._subject.others,
            "why": self._why,
            "pools": {name: len(pool) for name, pool in self._comparison.pools.items()},
            "advice": self._advice(),
            **self._conclusion.results,
        }

    def _apart(self, head: Commit) -> list[str]:
        """What differs between the base and a head besides what was asked."""
        cells = self._subject.cells
        known = [cells[end.hash] for end in (self._base, head) if end.hash in cells]
        return differences(*known) if len(known) == 2 else []

    def _pairs(self) -> dict[str, Sequence[Pair]]:
        """The pairs that were not discarded, by benchmark."""
        return {name: self._comparison.kept_pairs(name) for name in self._metric_of}

    def _print_commits(self) -> None:
        for role, commit in zip(self._question.roles, self._commits, strict=True):
            self._console.print(f"{role} {commit.short} {commit.subject}".rstrip())

    def _versus(self, show: Callable[[Commit], str]) -> str:
        """What is compared with what."""
        if len(self._commits) == 2:
            return f"{show(self._head)} against {show(self._base)}"
        if heads := self._question.heads:
            names = (show(Commit(one)) if one != heads[one].short else "" for one in heads)
            shown = map("{} {}".format, names, map(show, heads.values()))
            return f"{', '.join(map(str.strip, shown))} against {show(self._base)}"
        roles = zip(self._question.roles, self._commits, strict=True)
        return ", ".join(f"{role} {show(commit)}" for role, commit in roles)
