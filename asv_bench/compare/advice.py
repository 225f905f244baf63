"""What an answer that is no verdict yet is worth, and what it takes to get one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from asv_bench.compare.judging import builds_say
from asv_bench.compare.plan import LEAST_CAP, LEAST_FOR_LOCATION, ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.progress import clock
from asv_bench.output.table import interval, percentage
from asv_bench.stats.paired import hodges_lehmann, shift_interval

CPU = "cpu_s"
_TIMES = {"seconds", "s", "ms", "us", "µs", "ns"}
_FEWEST = 3
"""Pairs from which on what they show is worth saying."""
_MOST = 10_000
_OFTEN = 0.9
_LOOKS, _RANKS = 1.36, 4
"""By simulation: what ranks and looks take beside one t test, as a factor and in pairs."""
_QUIETER = 0.5
"""A metric is advised that varies by at most so much of what the other does."""


def estimate_text(so_far: Comparison) -> str:
    """What the pairs show so far, such as "+12.1 % ± 9.0 %"; empty where they are too few."""
    if so_far.effect is None or so_far.interval is None or so_far.pairs_used < _FEWEST:
        return ""
    low, high = so_far.interval
    half = percentage((high - low) / 2.0, 1)
    return f"{percentage(so_far.effect, 1, signed=True)} ± {half} so far"


def pairs_to_tell(effect: float, deviation: float, plan: ComparisonPlan) -> int:
    """About how many pairs tell a change from none 9 times of 10; one below the margin, from it.

    `deviation` is the standard deviation of the log-ratios of pairs.
    """
    size, margin = abs(math.log1p(effect)), math.log1p(plan.margin)
    is_large = size >= margin
    level = plan.alpha / 2.0 if is_large else plan.equivalence_alpha
    normal = statistics.NormalDist()
    reach = normal.inv_cdf(1.0 - level) + normal.inv_cdf(_OFTEN)
    apart = max(size if is_large else margin - size, 1e-9)
    # Below, equivalence has no look of its own.
    least = LEAST_CAP + 1 if is_large else LEAST_FOR_LOCATION
    return max(least, math.ceil(_LOOKS * (reach * deviation / apart) ** 2) + _RANKS)


def advice(
    answer: Comparison,
    pairs: Sequence[Pair],  # that it rests on
    plan: ComparisonPlan,  # with the metric's margin
    others: Mapping[str, Mapping[str, Sequence[float]]],  # figures of other metrics, by end
    devices: int,  # on which pairs are measured at the same time
    option: str,  # that allows more of them
) -> str:
    """A sentence for an inconclusive answer: what a verdict takes here; empty where unknown."""
    is_open = answer.verdict is Verdict.INCONCLUSIVE and answer.effect is not None
    if answer.control or not is_open or len(pairs) < _FEWEST:
        return ""
    # Of what some builds show alone, more pairs of the same builds show as much.
    if builds_say(pairs, plan, answer.verdict)[0]:
        return ""
    effect = answer.effect or 0.0
    shown = percentage(effect, 1, signed=True)
    deviation = statistics.stdev(pair.log_ratio for pair in pairs)
    if not deviation:
        return ""  # It has no noise, and more pairs would show the same.
    needed = pairs_to_tell(effect, deviation, plan)
    if needed > _MOST:
        return (
            f"{answer.benchmark}: {shown} is too close to the margin of {100 * plan.margin:g} % "
            f"for any number of pairs here; decide what matters, and say it with --margin."
        )
    seconds = needed * statistics.median(pair.seconds for pair in pairs) / max(1, devices)
    said = f"{answer.benchmark}: to tell {shown} here takes about {needed} pairs "
    said += f"({option} {needed}), {clock(seconds)} min"
    ends = {side: [getattr(pair, side).value for pair in pairs] for side in ("base", "head")}
    own, of_cpu = _variation(ends), _variation(others.get(CPU, {}))
    is_time = answer.unit in _TIMES and answer.benchmark != CPU
    if is_time and own and of_cpu and of_cpu <= _QUIETER * own:
        said += f"; or --metric {CPU}, which varies by {percentage(of_cpu, 1)} here and not by "
        said += percentage(own, 1)
    return f"{said}."


def beside_cpu(
    answer: Comparison, others: Mapping[str, Mapping[str, Sequence[float]]], plan: ComparisonPlan
) -> str:
    """A sentence where the CPU time of the same lives tells another story; empty elsewhere.

    `others` are figures of metrics that are not compared, as in `advice`.
    """
    of_cpu = others.get(CPU, {})
    sides = [of_cpu.get(end, ()) for end in (answer.base, answer.head)]
    is_time = answer.unit in _TIMES and answer.benchmark != CPU
    known = min(map(len, sides)) >= _FEWEST and len(sides[0]) == len(sides[1])
    if not (is_time and known and answer.effect is not None and min(map(min, sides)) > 0):
        return ""
    base, head = (np.log(side) for side in sides)
    effect = math.expm1(float(hodges_lehmann(head - base)))
    low, high = (math.expm1(float(one)) for one in shift_interval(head - base, plan.confidence)[:2])
    margin = plan.margin
    if answer.verdict is Verdict.SLOWER and high < answer.effect / 2:
        meaning = "it waits longer"
    elif answer.verdict is Verdict.FASTER and low > answer.effect / 2:
        meaning = "it waits less"
    elif not answer.verdict.is_clear and (low > margin or high < -margin):
        meaning = f"--metric {CPU} judges what it works"
    elif answer.verdict is Verdict.EQUIVALENT and low > margin:
        meaning = "it works more while nobody waits"
    else:
        return ""
    shown = interval(1)((low, high))
    return (
        f"{answer.benchmark} {percentage(answer.effect, 1, signed=True)}, {CPU} "
        f"{percentage(effect, 1, signed=True)} ({shown}): {meaning}."
    )


def _variation(by_end: Mapping[str, Sequence[float]]) -> float | None:
    """By how much lives of one end vary, as a fraction; None where they are too few."""
    spreads = [
        statistics.stdev(map(math.log, values))
        for values in by_end.values()
        if len(values) >= _FEWEST and min(values) > 0
    ]
    return statistics.median(spreads) if spreads else None
