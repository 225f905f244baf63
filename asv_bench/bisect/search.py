"""Finding the commit that changed a benchmark: gate the ends, search, confirm the culprit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from statistics import NormalDist

from asv_bench.bisect.finding import Direction, Finding, Guess, Outcome, Probe, Stage
from asv_bench.bisect.plan import MOST_CONFIRMATIONS, SearchPlan
from asv_bench.compare.comparison import (
    MOST_FAILURES,
    CommitComparison,
    Progress,
    summarize_pairs,
)
from asv_bench.compare.pair_pool import PairPool, PairRequest
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.process.samples import CommitUnusable, Pair, PairSource, SampleFailed
from asv_bench.stats.posterior import REFERENCE, FirstBad, Suspects

SourceOf = Callable[[str], PairSource]
"""Gives the source for a part of the search. Each part measures pairs of its own, which no other
part is given."""
OnProbe = Callable[[Probe], None]
PAIRS_IN_TURNS = 16
Z_DIFFERENT = 3.3
"""Standard errors between two effects, beyond which they differ (0.1 %, two-sided)."""


class Search:
    """The search for the first of some commits in a row that changed a benchmark.

    The ends are compared first, and if the bad one is not slower the search ends there. Then single
    pairs of a commit and the good end are measured, of the commit whose pair is expected to be the
    most informative, until one commit is certain. It is then compared with the commit before it, by
    new pairs. A culprit that is not confirmed stays a suspect, less probable than before.

    Parameters
    ----------
    source_of
        Measures pairs.
    good
        Full hash of the commit before the candidates.
    candidates
        Full hashes, oldest first; the last is the bad end.
    benchmark
        Name with parameters.
    on_probe
        Told of every pair.
    """

    def __init__(
        self,
        source_of: SourceOf,
        good: str,
        candidates: Sequence[str],
        benchmark: str,
        *,
        direction: Direction = Direction.REGRESSION,
        plan: SearchPlan | None = None,
        on_probe: OnProbe = lambda probe: None,
    ) -> None:
        self._source_of = source_of
        self._good = good
        self._candidates = tuple(candidates)
        self._benchmark = benchmark
        self._direction = direction
        self._plan = plan or SearchPlan()
        self._on_probe = on_probe
        self._posterior = FirstBad(len(self._candidates))
        self._unmeasurable: dict[str, str] = {}
        self._failures: dict[str, int] = {}
        self._pairs = 0
        self._confirmations: list[Comparison] = []

    def run(self) -> Finding:
        """Compare the ends, search and confirm.

        Raises CommitUnusable if one of the two ends cannot be measured.
        """
        gate = self._compare(
            Stage.GATE, "gate", REFERENCE, len(self._candidates) - 1, self._plan.comparison
        )
        if gate.verdict is not self._direction.verdict:
            return self._without_search(gate)
        while True:
            self._probe_until_certain()
            suspects = self._posterior.suspects()
            named = self._commits(suspects)
            if suspects.probability < self._plan.certain:
                reason = f"after {self._pairs} pairs of the search no commit is certain enough"
                return self._finding(Outcome.INCONCLUSIVE, reason, gate, suspects)
            if not named:
                reason = "the ends differed when they were compared, but not in the search"
                return self._finding(Outcome.INCONCLUSIVE, reason, gate, suspects)
            confirmation = self._confirm(suspects)
            if confirmation.verdict is self._direction.verdict:
                reason = "compared with the commit before it by pairs of their own"
                remark = self._remark(gate, confirmation)
                return self._finding(Outcome.FOUND, reason, gate, suspects, remark)
            now = self._posterior.suspects()
            stuck = now.commits == suspects.commits and now.probability >= self._plan.certain
            if stuck or len(self._confirmations) >= MOST_CONFIRMATIONS:
                reason = (
                    f"compared with the commit before it, {short(named[-1])} is "
                    f"{confirmation.verdict}; several small steps, or none, look like that"
                )
                return self._finding(Outcome.INCONCLUSIVE, reason, gate, now)

    def _compare(
        self, stage: Stage, part: str, before: int, after: int, plan: ComparisonPlan
    ) -> Comparison:
        """Compare two commits, taking their pairs into the posterior as well."""
        base, head = self._hash(before), self._hash(after)

        def on_pair(progress: Progress, pairs: Mapping[str, Pair]) -> None:
            pair = pairs.get(self._benchmark)
            if pair is not None:
                self._observe(before, after, pair)
            self._report(stage, before, after, pair, "" if pair else "one of its processes failed")

        comparison = CommitComparison(base, head, [self._benchmark], plan)
        [answer] = comparison.run(self._source_of(part), on_pair)
        return answer

    def _confirm(self, suspects: Suspects) -> Comparison:
        """Compare the newest of the suspects with the commit before the oldest."""
        planned = self._plan.comparison
        # A commit that did half of what was searched for is the culprit all the same.
        least = min(planned.minimum_effect, math.expm1(self._posterior.effect) / 2)
        comparison = self._compare(
            Stage.CONFIRMATION,
            f"confirmation {len(self._confirmations) + 1}",
            suspects.commits[0] - 1,
            suspects.commits[-1],
            replace(planned, minimum_effect=least, margin=least),
        )
        self._confirmations.append(comparison)
        return comparison

    def _remark(self, gate: Comparison, own: Comparison) -> str:
        """Whether the range's effect is more, or less, than the culprit's own.

        The machine may have changed between the two comparisons. So if their effects differ both
        are measured again, in turns, and only what is so then is said.
        """
        least = math.log1p(self._plan.comparison.minimum_effect)
        if not _differ(gate, own, least):
            return ""
        whole, alone = self._in_turns((gate.base, gate.head), (own.base, own.head))
        if not _differ(whole, alone, least):
            return ""
        grown = (_log(whole) - _log(alone) > 0) == (_log(whole) > 0)
        others = "there is more than one step" if grown else "another commit takes part of it back"
        return (
            f"Measured in turns, the whole range moved by {whole.effect:+.1%}, this commit alone "
            f"by {alone.effect:+.1%}: {others}. Bisect the ranges before and after it too."
        )

    def _in_turns(self, *ranges: tuple[str, str]) -> list[Comparison]:
        """Compare ranges by pairs that take turns, so that the same machine measures all."""
        plan = self._plan.comparison
        source = self._source_of("in turns")
        kept: list[list[Pair]] = [[] for _ in ranges]
        for turn in range(PAIRS_IN_TURNS + plan.max_discarded):
            wanting = [place for place, pairs in enumerate(kept) if len(pairs) < PAIRS_IN_TURNS]
            for place in wanting:
                base, head = ranges[place]
                pair = self._one(source, base, head, head_first=turn % 4 in (1, 2))
                if pair is not None and pair.discarded is None:
                    kept[place].append(pair)
        return [
            summarize_pairs(base, head, self._benchmark, pairs, plan)
            for (base, head), pairs in zip(ranges, kept, strict=True)
        ]

    def _one(self, source: PairSource, base: str, head: str, *, head_first: bool) -> Pair | None:
        pair, failure = None, ""
        try:
            pair = source.pair(
                base,
                head,
                head_first=head_first,
                benchmarks=(self._benchmark,),
                device=source.devices[0],
            )[self._benchmark]
        except (CommitUnusable, SampleFailed) as error:
            failure = str(error)
        self._on_probe(Probe(Stage.IN_TURNS, base, head, pair, failure))
        return pair

    def _probe_until_certain(self) -> None:
        PairPool(self._source_of("search")).measure(self._next_pair, self._take)

    def _next_pair(self, running: Sequence[PairRequest]) -> PairRequest | None:
        is_certain = self._posterior.suspects().probability >= self._plan.certain
        if is_certain or self._pairs + len(running) >= self._plan.most_pairs:
            return None
        pending = [self._candidates.index(request.head) for request in running]
        commit = self._candidates[self._posterior.most_informative(pending)]
        return PairRequest(self._good, commit, (self._benchmark,))

    def _take(self, request: PairRequest, future: Future[Mapping[str, Pair]]) -> None:
        commit = request.head
        index = self._candidates.index(commit)
        self._pairs += 1
        try:
            pair = future.result()[self._benchmark]
        except CommitUnusable as error:
            if error.commit != commit:
                raise
            self._leave_out(index, error.reason)
            self._report(Stage.SEARCH, REFERENCE, index, None, str(error))
        except SampleFailed as error:
            self._failures[error.commit] = self._failures.get(error.commit, 0) + 1
            if self._failures[error.commit] >= MOST_FAILURES:
                if error.commit != commit:
                    raise
                self._leave_out(index, f"its processes fail: {error.reason}")
            self._report(Stage.SEARCH, REFERENCE, index, None, str(error))
        else:
            self._observe(REFERENCE, index, pair)
            self._report(Stage.SEARCH, REFERENCE, index, pair)

    def _leave_out(self, index: int, reason: str) -> None:
        self._posterior.exclude(index)
        self._unmeasurable[self._candidates[index]] = reason

    def _observe(self, reference: int, commit: int, pair: Pair) -> None:
        if pair.discarded is None:
            ratio = self._direction.sign * pair.log_ratio
            self._posterior.observe(reference, commit, [ratio])

    def _report(
        self, stage: Stage, before: int, after: int, pair: Pair | None, failure: str = ""
    ) -> None:
        guess = None
        if stage is not Stage.GATE:
            suspects = self._posterior.suspects()
            left = self._posterior.pairs_left() if stage is Stage.SEARCH else None
            guess = Guess(self._commits(suspects), suspects.probability, left)
        probe = Probe(stage, self._hash(before), self._hash(after), pair, failure, guess)
        self._on_probe(probe)

    def _hash(self, index: int) -> str:
        return self._good if index == REFERENCE else self._candidates[index]

    def _commits(self, suspects: Suspects) -> tuple[str, ...]:
        return tuple(self._candidates[index] for index in suspects.commits)

    def _without_search(self, gate: Comparison) -> Finding:
        if gate.verdict is Verdict.FAILED:
            raise MeasurementFailed(f"the two ends could not be compared: {gate.reason}")
        if gate.verdict is Verdict.INCONCLUSIVE:
            reason = gate.reason or (
                f"no {self._direction} of the range was shown, nor that there is none of "
                f"{100 * self._plan.comparison.margin:g} %"
            )
            return self._finding(Outcome.INCONCLUSIVE, reason, gate, None)
        reason = f"the last commit is {gate.verdict} to the first"
        if gate.verdict is not Verdict.EQUIVALENT:
            reason = f"the last commit is {gate.verdict} than the first"
        return self._finding(Outcome.NONE, reason, gate, None)

    def _finding(
        self,
        outcome: Outcome,
        reason: str,
        gate: Comparison,
        suspects: Suspects | None,
        remark: str = "",
    ) -> Finding:
        posterior: dict[str, float] = {}
        if suspects is not None:
            by_index = zip(self._candidates, self._posterior.probabilities, strict=False)
            posterior = {commit: float(probability) for commit, probability in by_index}
        return Finding(
            outcome=outcome,
            direction=self._direction,
            benchmark=self._benchmark,
            good=self._good,
            bad=self._candidates[-1],
            reason=reason,
            gate=gate,
            suspects=() if suspects is None else self._commits(suspects),
            probability=None if suspects is None else suspects.probability,
            posterior=posterior,
            confirmations=tuple(self._confirmations),
            unmeasurable=dict(self._unmeasurable),
            remark=remark,
        )


def _differ(one: Comparison, other: Comparison, least: float) -> bool:
    """Whether two effects differ by this much as logarithms, and by more than errors explain."""
    rest = abs(_log(one) - _log(other))
    clear = rest > Z_DIFFERENT * math.hypot(_standard_error(one), _standard_error(other))
    return clear and rest >= least


def _log(comparison: Comparison) -> float:
    return math.log1p(comparison.effect or 0.0)


def _standard_error(comparison: Comparison) -> float:
    """The standard error of the log effect, from its interval; infinite without an interval."""
    if comparison.interval is None or comparison.confidence is None:
        return math.inf
    low, high = comparison.interval
    width = math.log1p(high) - math.log1p(low)
    return width / (2.0 * NormalDist().inv_cdf((1.0 + comparison.confidence) / 2.0))
