"""All that a search knows on its way, and the finding that follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from asv_bench.bisect.finding import (
    CurvePoint,
    Direction,
    Finding,
    Outcome,
    RangeShape,
    SearchPlan,
    Step,
)
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import TimeIsUp
from asv_bench.git.repository import kind_of, short
from asv_bench.measure.samples import Metric
from asv_bench.output.table import percentage
from asv_bench.stats.level_curve import REFERENCE, Gap, Level, LevelCurve
from asv_bench.words import counted

NOT_LOOKED_FOR = (
    "A change that a later commit of the range takes back is not looked for where the ends do not "
    "differ; --inside looks for it at some commits between, --all at each."
)
SUSPECT = 0.4
"""Probability of a step from which commits are looked at more closely."""
LASTING = 0.97
"""Probability of a step, after its commit was compared with the one before it, to be named: what
the commits around show tells a step from an offset of that commit alone."""
_RANGE = 0.95
"""Of the range in which a change lies that no few commits are suspected of."""
_BEYOND_OFFSETS = 4.0
"""So many margins large, a step cannot be what offsets of two commits make."""
_SEEN = 4.0
"""So many scales of a pair's error large, steps that cancel show where each commit is measured."""
_SLOPE_ENDS = 0.15
_REST = 0.1
"""Of the difference of the ends: what may be left without an explanation when the search ends, and
the least step that is looked for. What matters anyway, the margin, may be left too."""


@dataclass(frozen=True, slots=True)
class ComparedGap:
    """Commits at which a step seemed certain, and what comparing them came to."""

    gap: Gap
    comparison: Comparison
    is_confirmed: bool


@dataclass(slots=True, kw_only=True)
class Searched:
    """All that a search knows; `pairs` are those of the search alone."""

    good: str  # full hash of the commit before the candidates
    candidates: Sequence[str]  # full hashes, oldest first; the last is the bad end
    metric: Metric
    direction: Direction = Direction.REGRESSION
    plan: SearchPlan = field(default_factory=SearchPlan)
    curve: LevelCurve = field(init=False)
    gate: Comparison | None = None
    suspicions: dict[range, ComparedGap] = field(default_factory=dict)
    unmeasurable: dict[str, str] = field(default_factory=dict)
    pairs: int = 0
    stopped: KeyboardInterrupt | None = None  # what ended it early: Ctrl-C, or that time was up

    def __post_init__(self) -> None:
        self.curve = LevelCurve(len(self.candidates), math.log1p(self.plan.comparison.margin))

    @property
    def total(self) -> float:
        """The difference of the ends, as a rise of the curve in the direction."""
        return self._cost(self.gate) if self.gate is not None else 0.0

    @property
    def rest(self) -> float:
        """What of it the confirmed steps do not explain."""
        return self.total - sum(self._cost(one.comparison) for one in self.confirmed)

    def matters(self, gap: Gap) -> bool:
        """Whether a step there is worth looking for, beside what the ends differ by."""
        is_any = self.plan.is_all or not self.is_changed
        return is_any or abs(gap.effect) >= _REST * abs(self.total)

    def rise(self, gap: Gap) -> float:
        """By how much a gap rises in the direction that is looked for."""
        return self.direction.sign * gap.effect

    def is_largest(self, gap: Gap) -> bool:
        """Whether a step is larger than what else explains the ends, and than any offset."""
        is_early = self.is_changed and not self.plan.is_all
        least = max(self.rest / 2.0, _BEYOND_OFFSETS * self.curve.margin)
        return is_early and self.rise(gap) >= least

    def is_answered(self) -> bool:
        """Whether the largest step is confirmed, and little of the ends' difference is left."""
        if self.plan.is_all or not self.is_changed:
            return False
        sizes = [self._cost(one.comparison) for one in self.confirmed]
        may_be_left = max(_REST * abs(self.total), self.curve.margin)
        return max(sizes, default=0.0) > 0 and abs(self.rest) <= may_be_left

    def _cost(self, comparison: Comparison) -> float:
        """A comparison's effect as a rise of the curve in the direction."""
        return self.direction.sign * self._turn * math.log1p(comparison.effect or 0.0)

    @property
    def is_changed(self) -> bool:
        """Whether the ends differ in the direction that is looked for."""
        return self.gate is not None and self.gate.verdict is self.direction.verdict

    @property
    def confirmed(self) -> list[ComparedGap]:
        """Steps that differ from the commit before them."""
        return [one for one in self.suspicions.values() if one.is_confirmed]

    def effect(self, cost: float) -> float:
        """The change of the figure itself, of a rise of the curve."""
        return math.expm1(self._turn * cost)

    @property
    def _turn(self) -> int:
        """What turns logarithms of figures into costs, and back."""
        return -1 if self.metric.better == "higher" else 1

    def commits(self, indices: range) -> tuple[str, ...]:
        """Full hashes."""
        return tuple(self.candidates[index] for index in indices)

    def most_suspect(self, gaps: Sequence[Gap]) -> tuple[range, float]:
        """The commits at which a step is most probable, and how probable it is.

        Where no gap between measured commits is `SUSPECT`, they are the range in which a change
        must lie that the ends prove and no step explains, and else none: the probability is then
        that there is no step.
        """
        best = max(gaps, key=lambda gap: gap.probability, default=None)
        if best is not None and best.probability >= SUSPECT:
            return best.commits, best.probability
        if best is None or not self.is_changed or self.confirmed:
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


def answer(known: Searched) -> Finding:
    """The finding."""
    assert known.gate is not None
    _review(known)
    main = _main(known)
    outcome, shape, reason = _outcome(known, known.gate, main)
    gaps = known.curve.gaps() if known.pairs else []
    suspects, probability = range(0), None
    if main is not None:
        suspects, probability = main.gap.commits, main.gap.probability
    elif gaps and shape is RangeShape.UNRESOLVED:
        suspects, probability = known.most_suspect(gaps)
    in_order = sorted(known.suspicions.values(), key=lambda one: one.gap.commits.start)
    return Finding(
        outcome=outcome,
        direction=known.direction,
        benchmark=known.metric.name,
        good=known.good,
        bad=known.candidates[-1],
        reason=reason,
        gate=known.gate,
        suspects=known.commits(suspects),
        probability=probability if suspects else None,
        posterior={
            commit: gap.probability / len(gap.commits)
            for gap in gaps
            for commit in known.commits(gap.commits)
        },
        confirmations=tuple(one.comparison for one in known.suspicions.values()),
        unmeasurable=known.unmeasurable,
        remark=_remark(known, outcome),
        shape=shape,
        steps=tuple(_step(known, one) for one in in_order),
        curve=tuple(_point(known, one) for one in known.curve.levels()) if known.pairs else (),
    )


def _remark(known: Searched, outcome: Outcome) -> str:
    """What a search with an answer did not explain, and which steps that cancel may be left."""
    said, sign, plan = [], known.direction.sign, known.plan
    if outcome is Outcome.INCONCLUSIVE:
        return ""
    if outcome is Outcome.NONE and not plan.is_inside and len(known.candidates) > 1:
        return NOT_LOOKED_FOR
    explained = known.effect(sign * (known.total - known.rest))
    low, high = known.gate.interval if known.gate and known.gate.interval else (0.0, 0.0)
    is_asked = known.is_changed and not plan.is_all and not low <= explained <= high
    if is_asked and abs(known.rest) >= known.curve.margin:
        left = known.effect(sign * known.rest)
        said.append(f"{left:+.1%} of what the ends differ by is not explained; --all goes on.")
    count, kind = len(known.curve.unmeasured()), kind_of(known.candidates[-1])
    if count:
        said.append(
            f"{counted(count, kind)} of {len(known.candidates)} "
            f"{'was' if count == 1 else 'were'} not measured: changes that cancel each other there "
            f"are not seen; {'more of --most-pairs' if plan.is_all else '--all'} looks for them."
        )
    elif len(known.candidates) > 1:
        size = math.expm1(max(_SEEN * known.curve.scale, known.curve.margin))
        said.append(
            f"Every {kind} that can be measured was: changes that cancel each other are seen 9 "
            f"times of 10 from about {percentage(size, 1)} on."
        )
    return " ".join(said)


def _review(known: Searched) -> None:
    """See the suspicions as they are at the end, when more is known of the commits around."""
    now = {gap.commits: gap for gap in known.curve.gaps()}
    for commits, one in known.suspicions.items():
        gap = now.get(commits, one.gap)
        lasts = one.is_confirmed and gap.probability >= LASTING
        known.suspicions[commits] = replace(one, gap=gap, is_confirmed=lasts)


def _outcome(
    known: Searched, gate: Comparison, main: ComparedGap | None
) -> tuple[Outcome, RangeShape, str]:
    plan, pairs = known.plan, known.pairs
    several = RangeShape.SEVERAL_STEPS if len(known.confirmed) > 1 else RangeShape.ONE_STEP
    if main is not None and main.is_confirmed:
        return Outcome.FOUND, several, "compared with the commit before it by pairs of their own"
    if known.stopped is not None:
        what = "time was up" if isinstance(known.stopped, TimeIsUp) else "it was interrupted"
        doing = f"after {counted(pairs, 'pair')} of the search" if pairs else "at the ends already"
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, f"{what} {doing}"
    if known.is_changed:
        is_open = any(
            not one.is_confirmed and one.comparison.verdict is not Verdict.EQUIVALENT
            for one in known.suspicions.values()
        )
        is_smaller = abs(known.curve.levels()[-1].mean) < known.curve.margin
        if is_open or is_smaller or pairs >= plan.most_pairs:
            reason = f"after {pairs} pairs of the search no commit is certain enough"
            return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
        return Outcome.INCONCLUSIVE, RangeShape.SLOPE, _slope(known)
    shape = several if known.confirmed else RangeShape.NOTHING
    if gate.verdict is Verdict.INCONCLUSIVE:
        reason = f"no {known.direction} of the range was shown, nor that there is none of "
        reason = gate.reason or f"{reason}{100 * plan.comparison.margin:g} %"
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    if gate.verdict is not Verdict.EQUIVALENT:
        return Outcome.NONE, shape, f"the last commit is {gate.word} than the first"
    reason = "the last commit is equivalent to the first"
    if not plan.is_inside:
        return Outcome.NONE, shape, reason
    if pairs >= plan.most_pairs:
        reason += f", and {pairs} pairs were too few to say that of those between"
        return Outcome.INCONCLUSIVE, RangeShape.UNRESOLVED, reason
    looked = len(known.curve.levels()) - 1
    reason += f", and no change was found between, where {looked} were tried"
    return Outcome.NONE, shape, reason


def _slope(known: Searched) -> str:
    """A sentence of where the curve rises though no commit steps."""
    levels = [Level(REFERENCE, 0.0, 0.0, 0.0), *known.curve.levels()]
    whole = levels[-1].mean
    near = _SLOPE_ENDS * abs(whole)
    *_, older = takewhile(lambda level: abs(level.mean) <= near, levels[:-1])
    later = levels[: levels.index(older) : -1]
    *_, newer = takewhile(lambda level: abs(level.mean - whole) <= near, later)
    rise = known.effect(newer.mean - older.mean)
    names = known.commits(range(older.commit + 1, newer.commit + 1))
    if len(names) == 1:
        return f"about {rise:+.1%} came with {short(names[0])}, but that could not be confirmed"
    return (
        f"no single commit: {rise:+.1%} over the {len(names)} commits {short(names[0])} to "
        f"{short(names[-1])}, none of which was shown to change it by "
        f"{100 * known.plan.comparison.margin:g} %"
    )


def _main(known: Searched) -> ComparedGap | None:
    """The largest confirmed step in the direction, else the most probable one that was not."""

    def size(one: ComparedGap) -> tuple[bool, float]:
        effect = abs(math.log1p(one.comparison.effect or 0.0))
        return one.is_confirmed, effect if one.is_confirmed else one.gap.probability

    fitting = [one for one in known.suspicions.values() if known.rise(one.gap) > 0]
    return max(fitting, key=size, default=None)


def _step(known: Searched, one: ComparedGap) -> Step:
    commits, effect = known.commits(one.gap.commits), one.comparison.effect
    effect = known.effect(one.gap.effect) if effect is None else effect
    return Step(commits, effect, one.comparison.interval, one.gap.probability, one.is_confirmed)


def _point(known: Searched, level: Level) -> CurvePoint:
    low, high = sorted(known.effect(bound) for bound in (level.low, level.high))
    pairs = known.curve.pairs_of(level.commit)
    return CurvePoint(known.candidates[level.commit], known.effect(level.mean), (low, high), pairs)
