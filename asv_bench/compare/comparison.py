"""Comparing by rounds: looks as planned, and an answer for each contrast of each metric."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from asv_bench.compare.checks import CheckAnswer, answer_of, why_void
from asv_bench.compare.judging import Evidence, builds_say, judge, weigh, why_open
from asv_bench.compare.noise_pools import NoisePools, Pool
from asv_bench.compare.plan import ComparisonPlan, Criterion, Look
from asv_bench.compare.verdict import Comparison, Verdict, is_time
from asv_bench.errors import TimeIsUp
from asv_bench.git.repository import short
from asv_bench.measure.rounds import Design, RoundRequest, Schedule, in_a_row, two_cells
from asv_bench.measure.samples import (
    CommitUnusable,
    Metric,
    Pair,
    Round,
    RoundSource,
    SampleFailed,
    judged,
)
from asv_bench.stats.paired import POOL_SESSIONS

MOST_FAILURES = 3
"""Failed processes of a commit that can be measured, after which its benchmarks are given up."""


@dataclass(frozen=True, slots=True)
class Headway:
    """How far a comparison is; pairs are counted."""

    measured: int  # with those that were discarded
    kept: int  # of the open benchmark with the fewest
    next_look: int  # kept pairs at which the evidence is judged next
    so_far: Comparison  # what the pairs of that benchmark show, which is no verdict yet


OnPair = Callable[[Headway, Mapping[str, Pair]], None]
"""Called in the caller's thread after each pair, with what it measured."""


@dataclass(slots=True)
class _Case:
    """One benchmark on its way to a verdict."""

    kept: list[Pair] = field(default_factory=list)
    discarded: list[Pair] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answer: Comparison | None = None

    @property
    def lost(self) -> list[str]:
        """Why pairs do not count."""
        return [*(pair.discarded or "" for pair in self.discarded), *self.failures]


def with_pairs(
    answer: Comparison,
    pairs: Sequence[Pair],
    plan: ComparisonPlan,
    evidence: Evidence | None = None,
) -> Comparison:
    """An answer with the effect that the pairs show, whatever their number.

    `evidence` is what the verdict rests on; None: what the tests of location say.
    """
    if not pairs:
        return answer
    sides = [one.base.value for one in pairs], [one.head.value for one in pairs]
    entry, is_inverted = evidence or weigh(pairs, plan), pairs[0].higher_is_better
    used = sum(pair.base.pairs for pair in pairs)
    starts = len(pairs) if used > len(pairs) else None
    answer = replace(answer, pairs_used=used, starts_used=starts)
    return with_evidence(answer, entry, *sides, is_inverted=is_inverted)


def with_evidence(
    answer: Comparison,
    entry: Evidence,
    base: Sequence[float],
    head: Sequence[float],
    *,
    is_inverted: bool,
) -> Comparison:
    """The same with the figures of both ends; inverted, the more of them the better."""
    effect, low, high = map(float, (entry.effect, *entry.interval))
    if is_inverted:
        # The metric's own change: a fall of what should be high.
        effect, high, low = (1.0 / (1.0 + one) - 1.0 for one in (effect, low, high))
    return replace(
        answer,
        effect=effect,
        interval=(low, high),
        confidence=entry.confidence,
        test=str(entry.test),
        p=min(1.0, 2 * float(entry.p)),
        equivalence_p=float(entry.equivalence_p),
        base_value=statistics.median(base),
        head_value=statistics.median(head),
    )


class CommitComparison:
    """The cells of a design on their way to an answer for each contrast of each metric.

    A benchmark here is a contrast of a metric (`rounds.named`); of two commits it is the metric. An
    effect is the change of the figure itself, head / base - 1. `pools` holds, by benchmark,
    differences within one commit that this machine showed before (`judging.within_commit`): with
    them three pairs can be enough.
    """

    def __init__(
        self,
        design: Design,
        metrics: Sequence[Metric],
        plan: ComparisonPlan | None = None,
        pools: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._design = design
        self._metrics = {metric.name: metric for metric in metrics}
        self._metric_of = design.named(metrics, with_gate=True)
        self._asked = design.named(metrics)
        self._judged = judged(metrics)
        self._plan = plan or ComparisonPlan()
        self._cases = {name: _Case() for name in self._metric_of}
        self._measured = 0
        self.pools = pools or {}
        self.margins = {
            name: metric.margin
            for name, metric in self._metric_of.items()
            if metric.margin is not None
        }
        self._next_look = self._plan.looks[0].pairs
        self._on_pair: OnPair | None = None

    def run(self, source: RoundSource, on_pair: OnPair | None = None) -> list[Comparison]:
        """Measure until every benchmark has a clear answer or the plan's cap is reached.

        The answers are in the order of the metrics. Pairs that are discarded are replaced. A metric
        all of whose contrasts have a clear answer is measured no further, nor is a cell of a row.
        `on_pair` is told of every round. Raises CommitUnusable if one of the cells cannot be
        measured, unless a row has others.
        """
        self._on_pair = on_pair
        schedule = Schedule(source)
        for cell, prepared in schedule.prepare(self._design.cells).items():
            try:
                absences = prepared.result()
            except CommitUnusable as error:
                if not self._design.is_row or cell == self._design.cells[0]:
                    raise
                verdict = Verdict.NOT_MEASURED if error.is_lacking else Verdict.FAILED
                for name in self._contrasts_with(cell):
                    self._close(name, (), verdict, str(error))
                continue
            for metric, absence in absences.items():
                verdict = Verdict.FAILED if absence.has_failed else Verdict.NOT_MEASURED
                for name in self._contrasts_of(metric):
                    if self._cases[name].answer is None:
                        self._close(name, (), verdict, f"commit {short(cell)}: {absence.reason}")
        for number, look in enumerate(self._plan.looks):
            # A control needs no answer of its own.
            if not any(self._metric_of[name] in self._judged for name in self._open()):
                break
            has_pool = any(self._pool(name, look) for name in self._open())
            if look.test is Criterion.POOLED and not has_pool:
                continue
            self._next_look = look.pairs
            schedule.measure(self._next_round, self._take)
            self._look(number, look)
        for name in self._open():
            self._close(name, self._cases[name].kept, Verdict.INCONCLUSIVE, "")
        return self._answers()

    def _answers(self) -> list[Comparison]:
        """Those that there are; void where a control moved."""
        cases = {name: self._cases[name] for name, of in self._asked.items() if not of.check}
        answers = {name: one.answer for name, one in cases.items() if one.answer is not None}
        for name, answer in answers.items():
            least = self._plan.for_one(name, self.margins).minimum_effect
            why = answer.control and why_void(answer, cases[name].kept, least)
            if why:
                why = f"The control {self._metric_of[name].name} moved: {why}"
                return [replace(one, verdict=Verdict.VOID, reason=why) for one in answers.values()]
        return list(answers.values())

    def answers_after(self, error: KeyboardInterrupt | CommitUnusable) -> list[Comparison]:
        """The answers given before `run` raised, and an answer that says why for all others."""
        verdict, reason = Verdict.INCONCLUSIVE, "The comparison was interrupted."
        if isinstance(error, TimeIsUp):
            reason = "Time was up before there was an answer."
        if isinstance(error, CommitUnusable):
            verdict = Verdict.NOT_MEASURED if error.is_lacking else Verdict.FAILED
            reason = str(error)
        for name in self._open():
            self._close(name, self._cases[name].kept, verdict, reason)
        return self._answers()

    def checks(self) -> list[CheckAnswer]:
        """What the pairs so far tell of each contrast of each check."""
        found = []
        for name, metric in self._asked.items():
            if metric.check:
                case, ends = self._cases[name], self._ends_of(name)
                found.append(answer_of(metric, name, ends, case.kept, case.answer))
        return found

    def kept_pairs(self, benchmark: str) -> Sequence[Pair]:
        """The pairs of a benchmark that were not discarded, in the order they came in."""
        return self._cases[benchmark].kept

    def pairs(self) -> Sequence[Pair]:
        """All pairs of all benchmarks, discarded ones included, in the order they began in."""
        found = [pair for case in self._cases.values() for pair in (*case.kept, *case.discarded)]
        return sorted(found, key=lambda pair: min(pair.base.started_at, pair.head.started_at))

    def _contrasts_of(self, metric: str) -> list[str]:
        return [name for name, of in self._metric_of.items() if of.name == metric]

    def _contrasts_with(self, cell: str) -> list[str]:
        return [name for name in self._metric_of if cell in self._ends_of(name)]

    def _contrast(self, name: str) -> str:
        return name.removeprefix(self._metric_of[name].name).removeprefix(" ")

    def _ends_of(self, name: str) -> tuple[str, str]:
        return self._design.base_and_head(self._contrast(name))

    def _open(self) -> list[str]:
        """The benchmarks without an answer; a gate only where it has something to open.

        What is only looked at is none.
        """
        names = [
            name
            for name, case in self._cases.items()
            if case.answer is None and not self._is_beside(name)
        ]
        metrics = {self._asked[name].name for name in names if name in self._asked}
        return [name for name in names if self._metric_of[name].name in metrics]

    def _is_beside(self, name: str) -> bool:
        """Whether it is only looked at: results that must be equal, or have had one score."""
        metric, kept = self._metric_of[name], self._cases[name].kept
        scores = {one.value for pair in kept for one in (pair.base, pair.head)}
        return metric.check == "equal" or bool(metric.check and metric.score and len(scores) == 1)

    def _next_round(self, running: Sequence[RoundRequest]) -> RoundRequest | None:
        design, names = self._design, self._open()
        if design.is_row:
            asked = [one for one in names if self._metric_of[one] in self._judged]
            wanted = {self._contrast(one): self._ends_of(one)[1] for one in asked}
            design = in_a_row(design.cells[0], wanted)
            # Controls of the others, which need no answer of their own.
            for name in (one for one in names if self._contrast(one) not in wanted):
                self._close(name, self._cases[name].kept, Verdict.INCONCLUSIVE, "")
        cases = [self._cases[name] for name in self._open()]
        # Of a benchmark of which too many were lost, none is replaced.
        may_go_on = [case for case in cases if len(case.lost) < self._plan.max_discarded]
        if all(len(case.kept) + len(running) >= self._next_look for case in may_go_on):
            return None
        # A control may move once it has its answer, and a result may differ in any life.
        beside = [one.name for one in self._metrics.values() if one.control or one.check]
        metrics = dict.fromkeys([*(self._metric_of[one].name for one in self._open()), *beside])
        return RoundRequest(design, tuple(metrics))

    def _take(self, request: RoundRequest, future: Future[Round]) -> None:
        self._measured += 1
        measured: Round | None
        try:
            measured = future.result()
        except SampleFailed as failure:
            self._count(failure)
            measured = failure.round
        metrics = [self._metrics[name] for name in request.metrics]
        pairs = {} if measured is None else request.design.pairs(metrics, measured)
        for name, pair in pairs.items():
            case = self._cases[name]
            (case.kept if pair.discarded is None else case.discarded).append(pair)
        if self._on_pair is not None:
            names = self._open() or list(self._cases)
            shown = min(names, key=lambda name: len(self._cases[name].kept))
            kept = self._cases[shown].kept if self._open() else []
            so_far = self._answer(shown, kept, Verdict.INCONCLUSIVE)
            self._on_pair(Headway(self._measured, len(kept), self._next_look, so_far), pairs)

    def _count(self, failure: SampleFailed) -> None:
        failed = [name for one in failure.benchmarks for name in self._contrasts_of(one)]
        if self._design.is_row:  # the cell is given up, with all its metrics
            failed = self._contrasts_with(failure.commit)
        for name in failed:
            case = self._cases[name]
            case.failures.append(str(failure))
            if len(case.failures) >= MOST_FAILURES and case.answer is None:
                self._close(name, case.kept, Verdict.FAILED, str(failure))

    def _pool(self, name: str, look: Look) -> Sequence[float]:
        """The pool of a benchmark, where it comes from enough sessions for a look; else none."""
        pool = self.pools.get(name, ())
        known = pool.sessions if isinstance(pool, Pool) else POOL_SESSIONS
        return pool if known >= look.sessions else ()

    def _look(self, number: int, look: Look) -> None:
        is_last = look.pairs == self._plan.cap
        used = {name: self._cases[name].kept[: look.pairs] for name in self._open()}
        enough = {name: kept for name, kept in used.items() if len(kept) == look.pairs}
        evidence: dict[str, Evidence] = {}
        for name, kept in enough.items():
            plan, pool = self._plan.for_one(name, self.margins), self._pool(name, look)
            is_counted = not is_time(self._metric_of[name].unit)
            evidence[name] = weigh(kept, plan, look.test, pool, is_counted=is_counted)
        verdicts: dict[str, Verdict] = {}
        kinds = dict.fromkeys((of.control, of.check) for of in self._metric_of.values())
        for kind in kinds:  # each of which is a family of its own, and costs the others no power
            before = {
                name: one.answer.verdict if one.answer else None
                for name, one in self._cases.items()
                if (self._metric_of[name].control, self._metric_of[name].check) == kind
            }
            family = {name: one for name, one in evidence.items() if name in before}
            turns = self._design.turns
            verdicts |= judge(family, number, before, self._plan, self.margins, turns)
        for name, verdict in verdicts.items():
            plan = self._plan.for_one(name, self.margins)
            _, is_settled = builds_say(enough[name], plan, verdict)
            if verdict.is_clear or is_last or is_settled:
                entry = evidence[name]
                reason = "" if verdict.is_clear else why_open(entry, number, plan)
                self._close(name, enough[name], verdict, reason, entry)
        for name in used.keys() - enough.keys():
            lost = self._cases[name].lost
            reason = (
                f"{len(lost)} pairs were discarded or failed, which is all that may be replaced; "
                f"the last: {lost[-1]}"
            )
            self._close(name, used[name], Verdict.INCONCLUSIVE, reason)

    def _close(
        self,
        name: str,
        pairs: Sequence[Pair],
        verdict: Verdict,
        reason: str,
        evidence: Evidence | None = None,
    ) -> None:
        """Give a benchmark its answer, with what its builds say."""
        of_builds, _ = builds_say(pairs, self._plan.for_one(name, self.margins), verdict)
        reason = ". ".join(filter(None, [of_builds, reason]))
        self._cases[name].answer = self._answer(name, pairs, verdict, reason, evidence)

    def _answer(
        self,
        name: str,
        pairs: Sequence[Pair],
        verdict: Verdict,
        reason: str = "",
        evidence: Evidence | None = None,
    ) -> Comparison:
        metric = self._metric_of[name]
        unfilled = Comparison(
            name,
            *self._ends_of(name),
            verdict,
            pairs_discarded=len(self._cases[name].lost),
            reason=reason,
            unit=metric.unit,
            control=metric.control,
        )
        return with_pairs(unfilled, pairs, self._plan.for_one(name, self.margins), evidence)


class Suspicion(NamedTuple):
    """A benchmark, as asv prints it, that may differ between two commits, given by full hashes."""

    before: str
    after: str
    benchmark: str


def confirm(
    suspicions: Iterable[Suspicion],
    metrics: Mapping[str, Metric],
    source: RoundSource,
    on_pair: OnPair | None = None,
    plan: ComparisonPlan | None = None,
    noise: NoisePools | None = None,
) -> tuple[dict[Suspicion, Comparison], KeyboardInterrupt | None]:
    """The answers about suspicions, and what came before the last of them, if anything did.

    Those about the same commits are compared together, and Holm's procedure covers them. After
    Ctrl-C, suspicions that were not begun have no answer. `metrics` are the benchmarks by name,
    and `noise` is this machine's.
    """
    around: dict[tuple[str, str], list[str]] = {}
    for before, after, benchmark in dict.fromkeys(suspicions):
        around.setdefault((before, after), []).append(benchmark)
    answers: dict[Suspicion, Comparison] = {}
    for ends, benchmarks in around.items():
        pools = None if noise is None else noise.of(benchmarks)
        asked = [one for one in metrics.values() if one.control or one.name in benchmarks]
        comparison, stopped = CommitComparison(two_cells(*ends), asked, plan, pools), None
        try:
            compared = comparison.run(source, on_pair)
        except (CommitUnusable, KeyboardInterrupt) as error:
            compared = comparison.answers_after(error)
            stopped = error if isinstance(error, KeyboardInterrupt) else None
        for one in compared:
            is_begun = one.pairs_used or one.pairs_discarded or stopped is None
            if is_begun and one.benchmark in benchmarks:
                answers[Suspicion(*ends, one.benchmark)] = one
        if stopped is not None:
            return answers, stopped
        if noise is not None:
            noise.add({name: comparison.kept_pairs(name) for name in benchmarks})
    return answers, None
