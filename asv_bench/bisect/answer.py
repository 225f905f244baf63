"""What a search came to: its shape, its steps, and the sentences that say so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from asv_bench.bisect.finding import (
    ComparedGap,
    CurvePoint,
    Direction,
    Finding,
    Outcome,
    RangeShape,
    Step,
)
from asv_bench.bisect.plan import SearchPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import short
from asv_bench.stats.level_curve import Gap, Level, LevelCurve

NOT_LOOKED_FOR = (
    "A change that a later commit of the range takes back is not looked for where the ends do not "
    "differ; --inside looks for it."
)
SUSPECT = 0.4
"""Probability of a step from which commits are looked at more closely."""
_RANGE = 0.95
"""Of the range in which a change lies that no few commits are suspected of."""
_SLOPE_ENDS = 0.15
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Searched:
    """All that a search knows at its end; `pairs` are those of the search alone."""

    direction: Direction
    benchmark: str
    good: str
    candidates: tuple[str, ...]
    gate: Comparison
    plan: SearchPlan
    curve: LevelCurve
    suspicions: tuple[ComparedGap, ...]
    unmeasurable: Mapping[str, str]
    pairs: int
    higher_is_better: bool

    @property
    def is_changed(self) -> bool:
        """Whether the ends differ in the direction that is looked for."""
        return self.gate.verdict is self.direction.verdict

    def effect(self, cost: float) -> float:
        """The change of the figure itself, of a rise of the curve."""
        return math.expm1(-cost if self.higher_is_better else cost)

    def commits(self, indices: range) -> tuple[str, ...]:
        """Full hashes."""
        return tuple(self.candidates[index] for index in indices)


def answer(searched: Searched) -> Finding:
    """The finding."""
    steps = _steps(searched)
    confirmed = [step for step in steps if step.confirmed]
    main = _main(searched)
    outcome, shape, reason = _outcome(searched, confirmed, main)
    gaps = searched.curve.gaps() if searched.pairs else []
    posterior = {
        commit: gap.probability / len(gap.commits)
        for gap in gaps
        for commit in searched.commits(gap.commits)
    }
    suspects, probability = range(0), None
    if main is not None:
        suspects, probability = main.gap.commits, main.gap.probability
    elif gaps and shape is RangeShape.UNRESOLVED:
        is_proven = searched.is_changed and not confirmed
        suspects, probability = most_suspect(gaps, is_proven=is_proven)
    return Finding(
        outcome=outcome,
        direction=searched.direction,
        benchmark=searched.benchmark,
        good=searched.good,
        bad=searched.candidates[-1],
        reason=reason,
        gate=searched.gate,
        suspects=searched.commits(suspects),
        probability=probability if suspects else None,
        posterior=posterior,
        confirmations=tuple(one.comparison for one in searched.suspicions),
        unmeasurable=dict(searched.unmeasurable),
        remark=_remark(searched, outcome, confirmed),
        shape=shape,
        steps=steps,
        curve=_points(searched) if searched.pairs else (),
    )


def most_suspect(gaps: Sequence[Gap], *, is_proven: bool) -> tuple[range, float]:
    """The commits at which a step is most probable, and how probable it is.

    Where no gap between measured commits is `SUSPECT`, they are the range in which a change must
    lie that `is_proven`, and else none: the probability is then that there is no step.
    """
    best = max(gaps, key=lambda gap: gap.probability, default=None)
    if best is not None and best.probability >= SUSPECT:
        return best.commits, best.probability
    if best is None or not is_proven:
        return range(0), 1.0 if best is None else 1.0 - best.probability
    inside, outside = list(gaps), 1.0
    while len(inside) > 1:
        end = 0 if inside[0].probability <= inside[-1].probability else -1
        without = outside * (1.0 - inside[end].probability)
        if without < _RANGE:
            break
        outside = without
        del inside[end]
    return range(inside[0].commits.start, inside[-1].commits.stop), outside


def _outcome(
    searched: Searched, confirmed: list[Step], main: ComparedGap | None
) -> tuple[Outcome, RangeShape, str]:
    plan = searched.plan
    several = RangeShape.SEVERAL_STEPS if len(confirmed) > 1 else RangeShape.ONE_STEP
    if main is not None and main.is_confirmed:
        reason = "compared with the commit before it by pairs of their own"
        return Outcome.FOUND, several, reason
    if not searched.is_changed:
        return _without_change(searched, several if confirmed else RangeShape.NOTHING)
    if searched.pairs >= plan.most_pairs:
        reason = f"after {searched.pairs} pairs of the search no commit is certain enough"
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    undecided = [
        one.comparison
        for one in searched.suspicions
        if not one.is_confirmed and one.comparison.verdict is not Verdict.EQUIVALENT
    ]
    if undecided:
        last = undecided[-1]
        reason = (
            f"compared with the commit before it, {short(last.head)} is {last.word}, and the "
            f"commits around it do not show a step that lasts"
        )
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    if abs(searched.curve.levels()[-1].mean) < math.log1p(plan.comparison.margin):
        reason = "the ends differed when they were compared, but by less in the search"
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    return Outcome.INCONCLUSIVE, RangeShape.SLOPE, _slope(searched)


def _without_change(searched: Searched, shape: RangeShape) -> tuple[Outcome, RangeShape, str]:
    gate, margin = searched.gate, 100 * searched.plan.comparison.margin
    if gate.verdict is Verdict.INCONCLUSIVE:
        reason = gate.reason or (
            f"no {searched.direction} of the range was shown, nor that there is none of "
            f"{margin:g} %"
        )
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    if gate.verdict is not Verdict.EQUIVALENT:
        return Outcome.NONE, shape, f"the last commit is {gate.word} than the first"
    reason = f"the last commit is {gate.verdict} to the first"
    if searched.plan.is_inside:
        if searched.pairs >= searched.plan.most_pairs:
            reason += f", and {searched.pairs} pairs were too few to say that of those between"
            return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
        looked = len(searched.curve.levels()) - 1
        commits = "1 commit" if looked == 1 else f"{looked} commits"
        reason += f", and no change was found at {commits} measured between them"
    return Outcome.NONE, shape, reason


def _slope(searched: Searched) -> str:
    """A sentence of where the curve rises though no commit steps."""
    levels = [Level(-1, 0.0, 0.0, 0.0), *searched.curve.levels()]
    whole = levels[-1].mean
    first, last = 0, len(levels) - 1
    while first + 1 < last and abs(levels[first + 1].mean) <= _SLOPE_ENDS * abs(whole):
        first += 1
    while last - 1 > first and abs(levels[last - 1].mean - whole) <= _SLOPE_ENDS * abs(whole):
        last -= 1
    older, newer = levels[first], levels[last]
    rise = searched.effect(newer.mean - older.mean)
    names = searched.commits(range(older.commit + 1, newer.commit + 1))
    if len(names) == 1:
        return f"about {rise:+.1%} came with {short(names[0])}, but that could not be confirmed"
    return (
        f"no single commit: {rise:+.1%} over the {len(names)} commits {short(names[0])} to "
        f"{short(names[-1])}, none of which was shown to change it by "
        f"{100 * searched.plan.comparison.margin:g} %"
    )


def _main(searched: Searched) -> ComparedGap | None:
    """The largest confirmed step in the direction, else the most probable one that was not."""
    sign = searched.direction.sign
    fitting = [one for one in searched.suspicions if sign * one.gap.effect > 0]
    confirmed = [one for one in fitting if one.is_confirmed]
    if confirmed:
        return max(confirmed, key=lambda one: abs(math.log1p(one.comparison.effect or 0.0)))
    return max(fitting, key=lambda one: one.gap.probability, default=None)


def _steps(searched: Searched) -> tuple[Step, ...]:
    steps = []
    for one in sorted(searched.suspicions, key=lambda one: one.gap.commits.start):
        compared = one.comparison
        effect = compared.effect
        steps.append(
            Step(
                commits=searched.commits(one.gap.commits),
                effect=searched.effect(one.gap.effect) if effect is None else effect,
                interval=compared.interval,
                probability=one.gap.probability,
                confirmed=one.is_confirmed,
            )
        )
    return tuple(steps)


def _points(searched: Searched) -> tuple[CurvePoint, ...]:
    points = []
    for level in searched.curve.levels():
        low, high = sorted(searched.effect(bound) for bound in (level.low, level.high))
        pairs = searched.curve.pairs_of(level.commit)
        commit = searched.candidates[level.commit]
        points.append(CurvePoint(commit, searched.effect(level.mean), (low, high), pairs))
    return tuple(points)


def _remark(searched: Searched, outcome: Outcome, confirmed: list[Step]) -> str:
    if outcome is Outcome.NONE and not searched.plan.is_inside and len(searched.candidates) > 1:
        return NOT_LOOKED_FOR
    if outcome is not Outcome.FOUND or not searched.is_changed:
        return ""
    whole = searched.curve.levels()[-1]
    named = math.fsum(math.log1p(step.effect) for step in confirmed)
    named *= -1.0 if searched.higher_is_better else 1.0
    rest = whole.mean - named
    error = math.hypot(
        (whole.high - whole.low) / (2 * _Z),
        *(_standard_error(one.comparison) for one in searched.suspicions if one.is_confirmed),
    )
    margin = math.log1p(searched.plan.comparison.margin)
    if abs(rest) < max(margin, 3.3 * error):
        return ""
    return (
        f"The range as a whole moved by {searched.effect(whole.mean):+.1%}, so "
        f"{searched.effect(rest):+.1%} lies in commits that are not named."
    )


def _standard_error(comparison: Comparison) -> float:
    """The standard error of the log effect, from its interval; infinite without an interval."""
    if comparison.interval is None or comparison.confidence is None:
        return math.inf
    low, high = comparison.interval
    width = abs(math.log1p(high) - math.log1p(low))
    return width / (2.0 * NormalDist().inv_cdf((1.0 + comparison.confidence) / 2.0))
