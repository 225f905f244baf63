"""The smallest change that so many minutes of `compare` show, from a commit's own noise.

The rule of `compare` is applied to pairs of a commit with itself, drawn again, with a change added
to the head. It is applied to all draws at once: through the same looks with the same functions as
`CommitComparison`, which takes milliseconds a comparison.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asv_bench.compare.judging import verdicts, weigh_costs
from asv_bench.compare.noise_pools import Pool
from asv_bench.compare.plan import LEAST_CAP, ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.table import percentage
from asv_bench.stats.paired import POOL_SESSIONS, POOL_SIZE, Bools, Floats

FOUND = 0.9
"""Of all comparisons, so many find the change."""
LEAST_PAIRS = 8
"""Of a commit with itself, by which its noise is known well enough."""
_RUNS = 400
_STEP = 1.05
_UNTIED = 1e-6
_MOST = 10.0
"""Changes are tried from the margin up to this fraction, each so many times as large."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a comparison of so many minutes shows."""

    minutes: float
    pairs: int  # that fit, up to the plan's cap
    effect: float | None  # the smallest change that is found 9 times of 10; None: none is

    def sentence(self, verb: str = "compare", unit: str = "pairs") -> str:
        """The same in words; `unit` is what the pairs are to this verb."""
        begin = f"In {self.minutes:g} min {verb} measures at most {self.pairs} {unit} and finds"
        if self.effect is None:
            return f"{begin} no change 9 times of 10."
        return f"{begin} a change of {percentage(self.effect, 1)} 9 times of 10."


@dataclass(frozen=True, slots=True)
class MetricNoise:
    """What pairs of a commit with itself say of a metric."""

    metric: str
    pairs: int  # how many there are
    deviation: float  # the standard deviation of their log-ratios
    pair_s: float  # seconds that a pair takes
    reaches: tuple[Reach, ...]  # by minutes, ascending

    def sentence(self) -> str:
        """The noise, and what it allows."""
        if not self.reaches:
            return (
                f"{self.metric}: {self.pairs} pairs of the commit with itself are too few to say "
                f"what can be found; take more with --null."
            )
        found = f"{self.metric}: a pair takes {self.pair_s:.3g} s and varies by "
        found += f"{percentage(self.deviation, 2)}."
        return " ".join([found, *(reach.sentence() for reach in self.reaches)])


def noise_of(
    metric: str,
    comparisons: Sequence[Sequence[Pair]],  # of a commit with itself; at least one pair
    plan: ComparisonPlan,  # of the comparisons to come, with the metric's margin
    minutes: Sequence[float],  # that they may take
    *,
    at_once: int,  # metrics that are compared together
    devices: int,  # on which pairs are measured at the same time
) -> MetricNoise:
    """The noise of a metric, and what it allows."""
    pairs = [pair for comparison in comparisons for pair in comparison]
    pair_s = statistics.median(pair.seconds for pair in pairs)
    reaches: list[Reach] = []
    if len(pairs) >= LEAST_PAIRS:
        # Holm's procedure holds the first metric that it calls different to this level.
        alone = replace(plan, alpha=plan.alpha / at_once)
        # Logarithms of costs around the median of their comparison, [pairs, 2].
        logs = [np.array([pair.costs for pair in one]) for one in comparisons if one]
        costs = np.concatenate([one - np.median(one) for one in logs])
        for limit in sorted(minutes):
            # Both ends live once without being measured.
            fit = min(devices * max(0, int(60 * limit / pair_s) - 1), plan.cap)
            fitting = ComparisonPlan.with_cap(max(LEAST_CAP, fit)) if fit < plan.cap else plan
            found = _smallest_found(fit, costs, replace(alone, looks=fitting.looks))
            reaches.append(Reach(limit, fit, found if fit >= LEAST_CAP else None))
    deviation = float(np.std([pair.log_ratio for pair in pairs]))
    return MetricNoise(metric, len(pairs), deviation, pair_s, tuple(reaches))


def reach_of(
    pool: Pool, round_s: float, plan: ComparisonPlan, seconds: float, at_once: int, devices: int
) -> Reach:
    """What a comparison that ends after so many seconds shows where the noise is known.

    Its looks are those of the plan that it comes to, and that the pool has enough sessions for.
    """
    halves = np.asarray(pool, np.float64)[:, None] / 2.0
    costs, alone = np.hstack([-halves, halves]), replace(plan, alpha=plan.alpha / at_once)
    pairs = min(devices * max(0, int(seconds / round_s)), plan.cap)
    found = _smallest_found(pairs, costs, alone, pool.sessions)
    return Reach(round(max(0.0, seconds) / 60, 1), pairs, found)


def _smallest_found(
    pairs: int, costs: Floats, plan: ComparisonPlan, sessions: int = POOL_SESSIONS
) -> float | None:
    """The smallest change that so many pairs find often enough; None if they find none."""
    random = np.random.default_rng(0)
    # In each pair either process may be the head's.
    drawn = random.permuted(costs[random.integers(len(costs), size=(_RUNS, 1, pairs))], axis=-1)
    # What is drawn twice would be tied, which measured figures hardly ever are.
    drawn += random.normal(0, _UNTIED * np.ptp(costs), drawn.shape)
    base, head = drawn[:, 0, :, 0], drawn[:, 0, :, 1]
    # Only a full pool is judged by.
    size = POOL_SIZE if len(costs) >= POOL_SIZE else 0
    known = costs[random.integers(len(costs), size=(_RUNS, 1, size))][:, 0]
    pool = known[..., 1] - known[..., 0]
    steps = math.ceil(math.log(_MOST / plan.margin, _STEP))
    effects = [plan.margin * _STEP**step for step in range(steps + 1)]

    def is_found(effect: float) -> bool:
        return share_slower(base, head + math.log1p(effect), pool, plan, sessions) >= FOUND

    # What a larger change is found by, a smaller one may not be.
    return next(iter(effects[bisect_left(effects, True, key=is_found) :]), None)


def share_slower(
    base: Floats, head: Floats, pool: Floats, plan: ComparisonPlan, sessions: int = POOL_SESSIONS
) -> float:
    """Which part of comparisons, [runs, pairs], calls the head slower, look by look.

    Their pools, [runs, differences], come from so many sessions.
    """
    answers = np.full(len(base), Verdict.INCONCLUSIVE.value)
    in_turns = np.isin(np.arange(base.shape[-1]) % 4, (1, 2))
    for number, look in enumerate(plan.looks):
        if look.pairs > base.shape[-1] or look.sessions > sessions:
            continue
        earlier = base[:, : look.pairs], head[:, : look.pairs]
        own = own_differences(*earlier, in_turns[: look.pairs])
        evidence = weigh_costs(*earlier, plan, look.test, pool, own)
        is_significant = evidence.p <= plan.difference_level(number, 1)
        found = verdicts(evidence, is_significant, number, plan)
        answers = np.where(answers == Verdict.INCONCLUSIVE, found, answers)
    return float((answers == Verdict.SLOWER).mean())


def own_differences(base: Floats, head: Floats, head_first: Bools) -> Floats:
    """What `judging.within_commit` finds, [..., seams]: pairs of opposite orders meet there."""
    seams = np.flatnonzero(head_first[:-1] != head_first[1:])
    before, after = (
        np.where(head_first[seams], base[..., at], head[..., at]) for at in (seams, seams + 1)
    )
    return np.asarray(after - before)
