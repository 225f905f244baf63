"""The verdicts at one look, from the pairs that there are by then, and from the builds they are of.

Luck of a build is no change of the source: the order of functions, the length of a path, or the
size of an environment make all processes of a build faster or slower. So builds are a level above
lives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.compare.plan import ComparisonPlan, Criterion
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.table import percentage
from asv_bench.stats import paired
from asv_bench.stats.families import rejected_in_turns
from asv_bench.stats.paired import Bools, Floats

Builds: TypeAlias = npt.NDArray[np.int64]
"""By pair, which build of either end it measured."""
ENOUGH = 6
"""Builds an end that the tests of pairs take in place of lives."""
DIFFERENT: Mapping[int, float] = {3: 3.0, 4: 1.0, 5: 0.5, 6: 0.15}
ALIKE: Mapping[int, float] = {3: 1.0, 4: 0.5, 5: 0.0}
"""How many times as wide as the builds of either end the gap between both must be, by their number,
to call them different, or equivalent; where they are more it is as of the most."""
_OF_LEVEL = 0.8
"""Of a level, what a test of builds has: each look sees them a little otherwise."""
_CERTAIN = 4.0
"""Standard errors by which builds must differ, to be told apart."""
_FREE = 6
"""Pairs besides one of each build, from which on it is known how lives of a build vary."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What some pairs say, of one comparison or of many alike; arrays are [...]."""

    pairs: int  # how many they are
    test: Criterion  # what gave the p-values
    effect: Floats  # as a fraction: 0.02 is 2 % slower
    interval: tuple[Floats, Floats]  # of the effect
    confidence: float  # of the interval
    digit: Floats  # the step of the figures' last digit, as a difference of logarithms
    slower_p: Floats  # one-sided, of no effect
    faster_p: Floats
    are_apart: Bools  # whether all of one commit lie above all of the other
    # The larger of the p-values of two one-sided tests, of an effect of the margin in either
    # direction (Schuirmann 1987).
    equivalence_p: Floats

    @property
    def p(self) -> Floats:
        """The smaller of the one-sided p-values."""
        return np.minimum(self.slower_p, self.faster_p)


def weigh(
    pairs: Sequence[Pair],
    plan: ComparisonPlan,
    test: Criterion = Criterion.LOCATION,
    pool: Sequence[float] = (),
    *,
    is_counted: bool = False,
) -> Evidence:
    """Effect, interval and p-values of at least one pair, all of which may be judged by.

    `pool` holds differences within one commit that this machine showed before (`within_commit`).
    Whole numbers are exact where what they stand for `is_counted`.
    """
    base, head = np.array([pair.costs for pair in pairs]).T
    own = np.asarray(within_commit(pairs), np.float64)
    figures = [one.value for pair in pairs for one in (pair.base, pair.head)]
    is_exact = is_counted and all(figure % 1 == 0 for figure in figures)
    digit = 0.0 if is_exact else paired.printed_digit(figures)
    entry = weigh_costs(base, head, plan, test, np.asarray(pool, np.float64), own, digit)
    builds = builds_of(pairs)
    return entry if builds is None else over_builds(entry, base, head, builds, plan)


def weigh_costs(
    base: Floats,  # [..., pairs]
    head: Floats,  # [..., pairs]
    plan: ComparisonPlan,
    test: Criterion,
    pool: Floats,  # [..., size] differences within one commit, known before; size 0 for none
    own: Floats,  # [..., count] those that the pairs themselves show
    digit: float = 0.0,  # the step of the last one of the figures, as a fraction; 0: exact ones
) -> Evidence:
    """The same from logarithms of costs, of many comparisons at once."""
    margin = math.log1p(plan.margin)
    if test is Criterion.UNPAIRED:
        shift, low, high, confidence = paired.unpaired_shift(base, head, plan.confidence)
    else:
        low, high, confidence = paired.shift_interval(head - base, plan.confidence)
        shift = paired.hodges_lehmann(head - base)
    if test is Criterion.POOLED and pool.shape[-1] == paired.POOL_SIZE:
        # The range of so few pairs says little of how far off their centre may be.
        half = paired.POOL_HALF_WIDTH * pool.std(axis=-1) / math.sqrt(base.shape[-1])
        low, high = np.minimum(low, shift - half), np.maximum(high, shift + half)
        confidence = plan.confidence
    return Evidence(
        pairs=base.shape[-1],
        test=test,
        effect=np.expm1(shift),
        interval=(np.expm1(low), np.expm1(high)),
        confidence=confidence,
        digit=paired.last_digit(base, head, digit),
        slower_p=_p_values(test, base, head, pool, own),
        faster_p=_p_values(test, head, base, pool, own),
        are_apart=(head.min(-1) > base.max(-1)) | (base.min(-1) > head.max(-1)),
        equivalence_p=np.maximum(
            _p_values(test, base - margin, head, pool, own),
            _p_values(test, head - margin, base, pool, own),
        ),
    )


def builds_of(pairs: Sequence[Pair]) -> Builds | None:
    """By pair, its builds; None where there is one alone."""
    found = [one.base.build for one in pairs if one.base.build is not None]
    return np.array(found) if found and len(found) == len(pairs) else None


def levels_of(costs: Floats, builds: Builds) -> Floats:
    """The median cost of each build, [..., builds], of costs that are [..., pairs]."""
    return np.stack([np.median(costs[..., builds == one], -1) for one in np.unique(builds)], -1)


def are_apart(
    base: Floats, head: Floats, level: float, gaps: Mapping[int, float] = DIFFERENT
) -> Bools:
    """Whether builds of the head lie above those of the base by more than luck, [..., builds].

    All of them must where they are few; of more, as many as a test at this level asks for.
    """
    count = base.shape[-1]
    gap = head.min(axis=-1) - base.max(axis=-1)
    wider = np.maximum(np.ptp(base, axis=-1), np.ptp(head, axis=-1))
    apart = (count > 2) & (gap > 0) & (gap >= gaps.get(count, gaps[max(gaps)]) * wider)
    if count >= ENOUGH:
        apart |= paired.guarded_rank_sum_p(base, head) <= _OF_LEVEL * level
    return np.asarray(apart)


def over_builds(
    entry: Evidence, base: Floats, head: Floats, builds: Builds, plan: ComparisonPlan
) -> Evidence:
    """What is left of evidence where builds are a level above lives: all of them must show it."""
    before, after = levels_of(base, builds), levels_of(head, builds)
    count = before.shape[-1]
    if count == len(builds) >= ENOUGH:
        return entry  # Each life is of a build of its own.
    if count >= ENOUGH:
        low, high, _ = paired.shift_interval(after - before, plan.confidence)
    else:
        low, high = after.min(-1) - before.max(-1), after.max(-1) - before.min(-1)
    margin, level, alike = math.log1p(plan.margin), plan.alpha / 2.0, plan.equivalence_alpha
    is_alike = are_apart(before - margin, after, alike, ALIKE)
    is_alike &= are_apart(after - margin, before, alike, ALIKE)
    return replace(
        entry,
        interval=(
            np.minimum(entry.interval[0], np.expm1(low)),
            np.maximum(entry.interval[1], np.expm1(high)),
        ),
        slower_p=np.where(are_apart(before, after, level), entry.slower_p, 1.0),
        faster_p=np.where(are_apart(after, before, level), entry.faster_p, 1.0),
        equivalence_p=np.where(is_alike, entry.equivalence_p, 1.0),
    )


def within_commit(pairs: Sequence[Pair]) -> list[float]:
    """Logarithms of ratios between processes of one commit that ran one after the other.

    Where one pair ends with the commit that the next begins with, on the same device.
    """
    ratios: list[float] = []
    by_time = sorted(pairs, key=attrgetter("base.device", "base.started_at"))
    for earlier, later in pairwise(by_time):
        if earlier.base.device == later.base.device and earlier.head_first != later.head_first:
            side = attrgetter("base" if earlier.head_first else "head")
            ratios.append(math.log(side(later).value / side(earlier).value))
    return ratios


def judge(
    evidence: Mapping[str, Evidence],
    number: int,
    answers: Mapping[str, Verdict | None],
    plan: ComparisonPlan,
    margins: Mapping[str, float] = MappingProxyType({}),
    turns: Sequence[int] = (0,),
) -> dict[str, Verdict]:
    """The verdict on each open benchmark, of which this is the evidence, at look `number`.

    `answers` has all benchmarks of the comparison, the contrasts of a metric together, and the
    verdicts of earlier looks. `turns` are those of the contrasts. `margins` are those that are not
    the plan's, as fractions.
    """
    p_values = [float(evidence[name].p) if name in evidence else math.nan for name in answers]
    before = np.array([str(verdict or "") for verdict in answers.values()])
    by_metric = -1, len(turns)
    significant = significant_among(
        np.reshape(p_values, by_metric), before.reshape(by_metric), number, plan, turns
    )
    told = dict(zip(answers, significant.reshape(-1, 1), strict=True))
    return {
        name: Verdict(verdicts(entry, told[name], number, plan.for_one(name, margins)).item())
        for name, entry in evidence.items()
    }


def significant_among(
    # [..., metrics, contrasts] the smaller one-sided ones; NaN where one is not open
    p_values: Floats,
    before: npt.NDArray[np.str_],  # the same: verdicts of earlier looks, "" where there is none
    number: int,
    plan: ComparisonPlan,
    turns: Sequence[int] = (0,),
) -> Bools:
    """Which benchmarks of a comparison differ significantly at look `number`, or did before.

    Those that could not be measured are no hypotheses.
    """
    return rejected_in_turns(
        p_values,
        lambda share: plan.difference_level(number, share),
        turns,
        rejected=np.isin(before, (Verdict.SLOWER, Verdict.FASTER)),
        closed=before != "",
        counted=~np.isin(before, (Verdict.FAILED, Verdict.NOT_MEASURED)),
    )


def verdicts(
    entry: Evidence, is_significant: Bools, number: int, plan: ComparisonPlan
) -> npt.NDArray[np.str_]:
    """The values of `Verdict`, [...], at look `number`; `is_significant` is [...]."""
    # As log-ratios, so that faster and slower are held to the same: 1 / 1.01 is 1 % faster.
    shift, least = np.log1p(entry.effect), math.log1p(plan.minimum_effect)
    is_slower = is_significant & (shift >= least) & (entry.slower_p < entry.faster_p)
    is_faster = is_significant & (shift <= -least) & (entry.faster_p < entry.slower_p)
    low, high = (np.log1p(bound) for bound in entry.interval)
    # Figures that are printed alike may be apart by a step.
    margin = math.log1p(plan.margin) - entry.digit
    is_equivalent = (-margin <= low) & (high <= margin)
    is_equivalent &= entry.equivalence_p <= plan.equivalence_level(number)
    return np.select(
        [is_slower, is_faster, is_equivalent],
        [Verdict.SLOWER.value, Verdict.FASTER.value, Verdict.EQUIVALENT.value],
        Verdict.INCONCLUSIVE.value,
    )


def why_open(evidence: Evidence, number: int, plan: ComparisonPlan) -> str:
    """A clause about figures that seem to decide at look `number`, and do not; else "".

    `evidence` is of one comparison.
    """
    level = plan.equivalence_level(number)
    is_unpaired = evidence.test is Criterion.UNPAIRED
    used = f"{evidence.pairs} {'files a side' if is_unpaired else 'pairs'}"
    low, high = (abs(math.log1p(float(bound))) for bound in evidence.interval)
    if max(low, high) > math.log1p(plan.margin):
        if not evidence.are_apart or (evidence.p < 1 and not is_unpaired):
            return ""
        return (
            f"the two do not overlap, but after {used} only a gap that is wide "
            f"beside what either side scatters would tell them apart"
        )
    if max(low, high) + evidence.digit > math.log1p(plan.margin):
        return (
            f"the figure has too few digits for this margin: its last one is a step of "
            f"{percentage(math.expm1(float(evidence.digit)), 2)}, and a difference of "
            f"{100 * plan.margin:g} % may hide in it"
        )
    if evidence.equivalence_p > level:
        return (
            f"the interval lies within the margin of {100 * plan.margin:g} %, and to be called "
            f"equivalent after {used} asks for more: p "
            f"{float(evidence.equivalence_p):.2g} in place of {level:.2g} at most"
        )
    return ""


def builds_say(pairs: Sequence[Pair], plan: ComparisonPlan, verdict: Verdict) -> tuple[str, bool]:
    """A clause on the builds that show a difference, and whether more lives would not change it.

    "" where builds say nothing besides the verdict.
    """
    builds = builds_of(pairs)
    if builds is None or verdict not in (Verdict.SLOWER, Verdict.FASTER, Verdict.INCONCLUSIVE):
        return "", False
    kinds, counts = np.unique(builds, return_counts=True)
    count, free = len(kinds), len(builds) - len(kinds)
    if verdict is not Verdict.INCONCLUSIVE:
        where = f"it is seen in {count} of {count} builds" if count < ENOUGH else ""
        if count < ENOUGH - 1:
            luck = percentage(2.0 * 4.0**-count, 1)
            where += f"; luck may show as much in {luck} of comparisons, in 0.2 % with builds = 5"
        return where, False
    if count < 2 or free < _FREE:
        return "", False
    ratios = np.array([pair.log_ratio for pair in pairs])
    shifts = np.array([float(paired.hodges_lehmann(ratios[builds == one])) for one in kinds])
    left = ratios - shifts[np.searchsorted(kinds, builds)]
    error = paired.robust_sigma(left) * math.sqrt(len(builds) / free / counts.min())
    least = math.log1p(plan.minimum_effect)
    sides = [(sign * shifts >= least) & (sign * shifts > _CERTAIN * error) for sign in (1, -1)]
    shows = max(sides, key=np.sum)
    if not shows.any():
        costs = np.array([pair.costs for pair in pairs]).T
        widest = max(float(np.ptp(levels_of(side, builds))) for side in costs)
        apart = f"builds of one end lie {percentage(math.expm1(widest), 1)} apart: more builds tell"
        return apart if widest > max(least / 2.0, _CERTAIN * error) else "", False
    shown = shifts[shows]
    change = math.expm1(float(np.median(-shown if pairs[0].higher_is_better else shown)))
    where = f"{percentage(change, 1, signed=True)} is seen in {len(shown)} of {count} builds"
    if len(shown) == count:
        return f"{where}, too far apart or too few to tell it from luck: more builds tell", False
    apart_by = np.abs(shown).min() - (shifts[~shows] * np.sign(shown[0])).max()
    is_certain = bool(apart_by > _CERTAIN * math.sqrt(2.0) * error)
    return f"{where}: luck of a build, or a change that only some of them meet", is_certain


def _p_values(test: Criterion, base: Floats, head: Floats, pool: Floats, own: Floats) -> Floats:
    """One-sided: small where the head is slower."""
    match test:
        case Criterion.POOLED:
            if pool.shape[-1] < paired.POOL_SIZE or own.shape[-1] == 0:
                return np.ones(base.shape[:-1])
            return np.where(paired.fits_pool(own, pool), paired.pooled_p(base, head, pool), 1.0)
        case Criterion.SEPARATION:
            return paired.separation_p(base, head)
        case Criterion.RANK_SUM:
            return paired.guarded_rank_sum_p(base, head)
        case Criterion.LOCATION:
            return paired.location_p(head - base, is_two_sided=False)
        case Criterion.UNPAIRED:
            return paired.unpaired_p(base, head)
