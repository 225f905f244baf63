"""Finding the commits that changed a benchmark: gate the ends, search, confirm each of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from statistics import median

from asv_bench.bisect.finding import MOST_CONFIRMATIONS, Finding, Guess, Probe, Stage
from asv_bench.bisect.searched import LASTING, SUSPECT, ComparedGap, Searched, answer
from asv_bench.compare.checks import ControlMoved
from asv_bench.compare.comparison import MOST_FAILURES, CommitComparison, Headway
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed
from asv_bench.measure.rounds import Design, RoundRequest, Schedule, two_cells
from asv_bench.measure.samples import CommitUnusable, Metric, Pair, Round, RoundSource, SampleFailed
from asv_bench.stats.level_curve import REFERENCE, Gap
from asv_bench.stats.paired import robust_sigma

MOST_LEFT, MOST_LEFT_OF_ALL = 0.5, 0.35
"""Steps that may be left somewhere when the search ends, and where none explains the range."""
LOOKED_AT = 7
"""Commits between the ends that are looked at where the ends are alike. So few are always measured
before the search ends."""
_GOLDEN = 0.618
_FAR, _STEADY = math.log(2.0), 0.05
"""Where the ends differ by as much, and lives of either vary by no more, single lives tell."""


@dataclass(slots=True, kw_only=True)
class Search(Searched):
    """The search for the commits in a row that changed a benchmark.

    The ends are compared first, and if the bad one is not slower the search ends there, unless the
    plan says to look inside all the same. Then single pairs of a commit and the good end are
    measured, of the commit whose pair is expected to tell most of where the curve of levels steps,
    until each step lies at one commit or no commit is suspect. Each such commit is then compared
    with the one before it, by new pairs. Where the ends are far apart, single lives take the place
    of pairs. The largest step comes first, and the search ends once what is confirmed explains the
    difference of the ends (`Searched.is_answered`), unless the plan asks for all steps. Steps that
    cancel each other do not show in it: each commit that was not measured is measured once before
    the end where they are few, `spare_s` (in seconds) is enough, or the plan asks for all steps.
    """

    source_of: Callable[[str], RoundSource]
    """Gives the source for a part of the search, whose pairs no other part is given."""
    controls: Sequence[Metric] = ()
    pool: Sequence[float] = ()
    """Differences within one commit that this machine showed before (`judging.within_commit`)."""
    on_probe: Callable[[Probe], None] = lambda probe: None  # told of every pair
    on_confirmed: Callable[[Comparison], None] = lambda comparison: None
    """Told of every step that is confirmed."""
    spare_s: Callable[[], float] = lambda: 0.0
    _is_survey: bool = field(init=False, default=False)  # whether each commit is to be measured
    _of_gate: list[Pair] = field(init=False, default_factory=list)
    _failures: Counter[str] = field(init=False, default_factory=Counter)

    def run(self) -> Finding:
        """Compare the ends, search and confirm; after Ctrl-C, what is known by then.

        Raises CommitUnusable if one of the two ends cannot be measured.
        """
        last = len(self.candidates) - 1
        try:
            self.gate = gate = self._compare(Stage.GATE, "gate", REFERENCE, last, share=1)
            if gate.verdict is Verdict.FAILED:
                raise MeasurementFailed(f"the two ends could not be compared: {gate.reason}")
            if self.is_changed or self.plan.is_inside:
                self._search(() if self.is_changed else self._places())
                self._is_survey = self.plan.is_all or bool(self.confirmed and self._is_cheap())
                if self._is_survey:
                    self.curve.fewest = 1
                    self._search(())
        except KeyboardInterrupt as error:
            if self.gate is None:
                raise
            self.stopped = error
        return answer(self)

    def _is_cheap(self) -> bool:
        """Whether there is time to measure what was not, where steps that cancel may lie."""
        count = len(self.curve.unmeasured())
        pair_s = median(pair.seconds for pair in self._of_gate)
        return count <= LOOKED_AT or count * pair_s < self.spare_s()

    def _search(self, places: Sequence[int]) -> None:
        """Probe and confirm until nothing is suspect any more, beginning at these places."""
        while True:
            self._probe_until_settled(places)
            new = [gap for gap in self.curve.gaps() if self._is_located(gap)]
            if not new or len(self.suspicions) - len(self.confirmed) >= MOST_CONFIRMATIONS:
                return
            share = len(self.suspicions) + len(new)
            if not any(map(self.is_largest, new)):
                self.curve.expect_offsets()
            for gap in sorted(new, key=self.rise, reverse=True):
                self._confirm(gap, share)
                if self.is_answered() and self._do_last() and not self._is_survey:
                    return

    def _compare(self, stage: Stage, part: str, before: int, after: int, share: int) -> Comparison:
        """Compare two commits at a `share`-th of the error; their pairs go into the curve, too."""
        base, head = self._hash(before), self._hash(after)

        def on_pair(progress: Headway, pairs: Mapping[str, Pair]) -> None:
            pair = pairs.get(self.metric.name)
            self._report(stage, before, after, pair, "" if pair else "one of its processes failed")

        plan = replace(self.plan.comparison, alpha=self.plan.comparison.alpha / share)
        metrics, pools = [self.metric, *self.controls], {self.metric.name: self.pool}
        comparison = CommitComparison(two_cells(base, head), metrics, plan, pools)
        try:
            compared, *_ = comparison.run(self.source_of(part), on_pair)
        except KeyboardInterrupt as error:
            if stage is Stage.GATE and comparison.pairs():
                self.gate, *_ = comparison.answers_after(error)
            raise
        if compared.verdict is Verdict.VOID:
            raise ControlMoved(compared.reason)
        return compared

    def _confirm(self, gap: Gap, share: int) -> None:
        """Compare the newest commit of a gap with the one before it; they share the error."""
        part, before = f"confirmation {len(self.suspicions) + 1}", gap.commits.start - 1
        comparison = self._compare(Stage.CONFIRMATION, part, before, gap.commits[-1], share)
        expected = Verdict.SLOWER if gap.effect > 0 else Verdict.FASTER
        is_confirmed = comparison.verdict is expected
        self.suspicions[gap.commits] = ComparedGap(gap, comparison, is_confirmed)
        if is_confirmed:
            self.on_confirmed(comparison)

    def _probe_until_settled(self, places: Sequence[int]) -> None:
        # One life says on which side a commit is where the ends lie far apart, and lives do not.
        ends = zip(*(pair.costs for pair in self._of_gate), strict=True)
        is_steady = all(robust_sigma(costs) <= _STEADY for costs in ends)
        is_single = self.is_changed and is_steady and abs(self.total) >= _FAR

        def next_round(running: Sequence[RoundRequest]) -> RoundRequest | None:
            if self.pairs + len(running) >= self.plan.most_pairs:
                return None
            pending = [self.candidates.index(request.design.cells[-1]) for request in running]
            commit = self._next_commit(pending, places)
            if commit is None:
                return None
            name = self.candidates[commit]
            alone = Design((name,), {}, ((0,),), (name, name))  # nothing is compared
            design = alone if is_single else two_cells(self.good, name)
            return RoundRequest(design, (self.metric.name,))

        Schedule(self.source_of("search")).measure(next_round, self._take)

    def _pair_of(self, request: RoundRequest, measured: Round) -> Pair:
        """The pair of a round; a single life stands beside the middle one of the good end."""
        if len(request.design.cells) > 1:
            [pair] = request.design.pairs([self.metric], measured).values()
            return pair
        middle = median(pair.base.value for pair in self._of_gate)
        near = min(self._of_gate, key=lambda pair: abs(pair.base.value - middle))
        head = measured.readings[0][self.metric.name]
        return replace(near, head=head, head_first=False)

    def _next_commit(self, pending: Sequence[int], places: Sequence[int]) -> int | None:
        """The commit to measure; None where nothing is suspect, or a step is to be compared."""
        if self._is_survey:
            for some in (self.curve.unmeasured(), self.curve.odd()):
                if new := {*some} - {*pending}:
                    # Spread over the range, as there may be more than there is time for.
                    return min(new, key=lambda commit: commit * _GOLDEN % 1.0)
        gaps = self.curve.gaps()
        if any(self._is_located(gap) and self.is_largest(gap) for gap in gaps):
            return None
        open_gaps = [gap for gap in gaps if self._is_open(gap)]
        left = sum(gap.probability for gap in open_gaps)
        has_step = bool(self.confirmed) or any(map(self._is_located, gaps))
        most = MOST_LEFT if has_step or places else MOST_LEFT_OF_ALL
        # Steps that cancel each other are two.
        most = 1.0 if self._is_survey else most
        if any(gap.probability >= SUSPECT for gap in open_gaps) or left >= most:
            return self.curve.most_informative(pending)
        bad = self.curve.levels()[-1]
        farthest = max(abs(bad.low), abs(bad.high))
        if not has_step and not places and abs(bad.mean) < self.curve.margin < farthest:
            # The comparison of the ends said more: without its difference there is no step to find.
            return bad.commit
        # The first place of which the level is not known to the margin yet.
        levels = self.curve.levels()
        known = [one.commit for one in levels if one.high - one.low < 2.0 * self.curve.margin]
        nearest = map(self.curve.nearest, places)
        return next((one for one in nearest if one not in known and one not in pending), None)

    def _places(self) -> list[int]:
        """Places at which to look between ends that are alike, evenly spread, the middle first."""
        count = self.curve.count
        parts = min(LOOKED_AT + 1, count)
        places = [count * part // parts - 1 for part in range(1, parts)]
        return sorted(places, key=lambda place: abs(2 * place + 2 - count))

    def _do_last(self) -> bool:
        """Whether the commits around bear out every step that is confirmed."""
        confirmed = {one.gap.commits for one in self.confirmed}
        gaps = (gap for gap in self.curve.gaps() if gap.commits in confirmed)
        return all(gap.probability >= LASTING for gap in gaps)

    def _is_located(self, gap: Gap) -> bool:
        """Whether a step lies there, at one commit, and was not compared yet."""
        is_certain = gap.is_atomic and gap.probability >= self.plan.certain
        return is_certain and gap.commits not in self.suspicions and self.matters(gap)

    def _is_open(self, gap: Gap) -> bool:
        """Whether there may be a step of which pairs with the good end would tell more."""
        suspicion = self.suspicions.get(gap.commits)
        if suspicion is None:
            return self.matters(gap) and not self._is_located(gap)
        return suspicion.is_confirmed and gap.probability < LASTING

    def _take(self, request: RoundRequest, future: Future[Round]) -> None:
        index = self.candidates.index(request.design.cells[-1])
        self.pairs += 1
        pair, failure = None, ""
        try:
            pair = self._pair_of(request, future.result())
        except CommitUnusable as error:
            self._leave_out(index, error, error.reason)
            failure = str(error)
        except SampleFailed as error:
            self._failures[error.commit] += 1
            if self._failures[error.commit] >= MOST_FAILURES:
                self._leave_out(index, error, f"its processes fail: {error.reason}")
            failure = str(error)
        self._report(Stage.SEARCH, REFERENCE, index, pair, failure)

    def _leave_out(self, index: int, error: CommitUnusable | SampleFailed, reason: str) -> None:
        """Search without a commit; raises the error where it is of one of the two ends."""
        *between, _ = self.candidates
        if error.commit not in between:
            raise error
        self.curve.exclude(index)
        self.unmeasurable[error.commit] = reason

    def _report(self, stage: Stage, before: int, after: int, pair: Pair | None, why: str) -> None:
        """Take in a pair, and tell of it."""
        if pair is not None and pair.discarded is None:
            self.curve.observe(before, after, [pair.log_ratio])
            if stage is Stage.GATE:
                self._of_gate.append(pair)
        guess = self._guess() if stage is Stage.SEARCH else None
        self.on_probe(Probe(stage, self._hash(before), self._hash(after), pair, why, guess))

    def _guess(self) -> Guess:
        """Where a step is most probable that was not compared yet."""
        gaps = [gap for gap in self.curve.gaps() if gap.commits not in self.suspicions]
        indices, probability = self.most_suspect(gaps)
        return Guess(self.commits(indices), probability, self.curve.pairs_left())

    def _hash(self, index: int) -> str:
        return self.good if index == REFERENCE else self.candidates[index]
