"""What this machine's noise was, and the smallest change that can be found in it.

Each comparison adds the differences that it showed between processes of one commit, by benchmark,
and the next one is judged by them, so that a difference far beyond the noise needs five pairs only,
and three or four where they come from several commands: a machine may have been in one of its
states throughout a single one. What a pair took is kept beside them. A file holds those of one
subject, machine, number of threads and ruler, since under another their noise is another.

What so many minutes of `compare` show is tried on pairs of a commit with itself, drawn again, with
a change added to the head. The rule of `compare` is applied to all draws at once: through the same
looks with the same functions as `CommitComparison`, which takes milliseconds a comparison.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from asv_bench.compare.judging import verdicts, weigh_costs, within_commit
from asv_bench.compare.plan import LEAST_CAP, ComparisonPlan
from asv_bench.compare.verdict import Verdict
from asv_bench.measure.log import Log, Shown, conditions, file_of
from asv_bench.measure.samples import Pair
from asv_bench.output.record import WORKPLACE, Record
from asv_bench.output.table import percentage
from asv_bench.stats.paired import POOL_SESSIONS, POOL_SIZE, Bools, Floats

FOLDER = WORKPLACE / ".asv" / "noise"
_MOST_LINES = 8 * POOL_SIZE
FOUND = 0.9
"""Of all comparisons, so many find the change."""
LEAST_PAIRS = 8
"""Of a commit with itself, by which its noise is known well enough."""
_RUNS = 400
_STEP = 1.05
_UNTIED = 1e-6
_MOST = 10.0
"""Changes are tried from the margin up to this fraction, each so many times as large."""


class Pool(list[float]):
    """Differences within one commit that a machine showed, and in how many sessions.

    `pair_s` are the seconds that a pair took in the last of these; 0: unknown.
    """

    def __init__(
        self, differences: Iterable[float], sessions: int = POOL_SESSIONS, pair_s: float = 0.0
    ) -> None:
        super().__init__(differences)
        self.sessions = sessions
        self.pair_s = pair_s


class NoisePools:
    """The pools under which a record is measured.

    `complaints` has a sentence for each line of the file that is none of ours.
    """

    def __init__(self, record: Record, folder: Path | None = None) -> None:
        measured = {"subject": record.settings.get("subject"), **conditions(record)}
        self._log = Log(file_of(measured, folder or FOLDER, "{}.jsonl"))
        self.path, self.complaints = self._log.path, self._log.complaints
        self._session = time.time_ns()
        # By benchmark and by session that showed any, the latest last.
        self._pools: dict[str, dict[int, list[float]]] = {}
        self._pair_s: dict[str, float] = {}
        for one in self._log.shown:
            self._learn(one)
        if len(self._log.shown) > _MOST_LINES:
            self.path.unlink()
            for session in sorted(set(chain.from_iterable(self._pools.values()))):
                of_session = {name: of.get(session, []) for name, of in self._pools.items()}
                self._log.keep(Shown(session, of_session, self._pair_s))

    def of(self, benchmarks: Sequence[str]) -> dict[str, Pool]:
        """Those benchmarks' pools that are full enough to judge by."""
        known = {name: self._pools.get(name, {}) for name in benchmarks}
        return {
            name: Pool(chain(*one.values()), len(one), self._pair_s.get(name, 0.0))
            for name, one in known.items()
            if sum(map(len, one.values())) == POOL_SIZE
        }

    def add(self, pairs: Mapping[str, Sequence[Pair]], *, are_same: bool = False) -> None:
        """Add what pairs showed within a commit, and keep it; only the latest count.

        `are_same`: they are of a commit with itself, and are such differences themselves. All that
        one of these objects adds is of one session.
        """
        differences = {
            name: [one.log_ratio for one in found] if are_same else within_commit(found)
            for name, found in pairs.items()
        }
        # In a round of several cells another life may lie between those of a pair.
        took = {
            name: statistics.median(
                min(one.seconds, one.base.process_s + one.head.process_s) for one in found
            )
            for name, found in pairs.items()
            if found
        }
        shown = Shown(self._session, differences, {name: one for name, one in took.items() if one})
        self._learn(shown)
        self._log.keep(shown)

    def _learn(self, shown: Shown) -> None:
        self._pair_s |= shown.pair_s
        for name, added in shown.differences.items():
            sessions = self._pools.setdefault(name, {})
            sessions.setdefault(shown.session, []).extend(added)
            while sum(map(len, sessions.values())) > POOL_SIZE:
                # So that many sessions have a part in it: the oldest of the longest.
                del max(sessions.values(), key=len)[0]
            self._pools[name] = {one: found for one, found in sessions.items() if found}


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
    head_first = np.isin(np.arange(base.shape[-1]) % 4, (1, 2))
    for number, look in enumerate(plan.looks):
        if look.pairs > base.shape[-1] or look.sessions > sessions:
            continue
        earlier = base[:, : look.pairs], head[:, : look.pairs]
        own = own_differences(*earlier, head_first[: look.pairs])
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
