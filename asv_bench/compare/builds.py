"""What builds of one source leave of a difference: luck of a build is no change of the source.

The order of functions, the length of a path, or the size of an environment make all processes of a
build faster or slower. So builds are a level above lives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.table import percentage
from asv_bench.stats.paired import Floats, guarded_rank_sum_p, hodges_lehmann, robust_sigma

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


def builds_of(pairs: Sequence[Pair]) -> Builds | None:
    """By pair, its builds; None where there is one alone."""
    found = [one.base.build for one in pairs if one.base.build is not None]
    return np.array(found) if found and len(found) == len(pairs) else None


def levels_of(costs: Floats, builds: Builds) -> Floats:
    """The median cost of each build, [..., builds], of costs that are [..., pairs]."""
    return np.stack([np.median(costs[..., builds == one], -1) for one in np.unique(builds)], -1)


def are_apart(
    base: Floats, head: Floats, level: float, gaps: Mapping[int, float] = DIFFERENT
) -> npt.NDArray[np.bool_]:
    """Whether builds of the head lie above those of the base by more than luck, [..., builds].

    All of them must where they are few; of more, as many as a test at this level asks for.
    """
    count = base.shape[-1]
    gap = head.min(axis=-1) - base.max(axis=-1)
    wider = np.maximum(np.ptp(base, axis=-1), np.ptp(head, axis=-1))
    apart = (count > 2) & (gap > 0) & (gap >= gaps.get(count, gaps[max(gaps)]) * wider)
    if count >= ENOUGH:
        apart |= guarded_rank_sum_p(base, head) <= _OF_LEVEL * level
    return np.asarray(apart)


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
    shifts = np.array([float(hodges_lehmann(ratios[builds == one])) for one in kinds])
    left = ratios - shifts[np.searchsorted(kinds, builds)]
    error = robust_sigma(left) * math.sqrt(len(builds) / free / counts.min())
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
