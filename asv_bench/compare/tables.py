"""Comparisons as a person reads them: a table and sentences.

Some of these say what an answer that is no verdict yet is worth, and what it takes to get one.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from asv_bench.compare.judging import builds_say
from asv_bench.compare.plan import LEAST_CAP, LEAST_FOR_LOCATION, ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.console import clock
from asv_bench.output.figure_rows import figure_text
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.process.gpu import GpuConditions, throttling
from asv_bench.stats.paired import hodges_lehmann, location_p, shift_interval, smallest_p

STYLES = {
    Verdict.SLOWER: "bold red",
    Verdict.FAILED: "red",
    Verdict.VOID: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_MEASURED: "dim",
    Verdict.FASTER: "bold green",
    Verdict.EQUIVALENT: "green",
    Verdict.SAME: "green",
}
"""How verdicts look, the worst first."""
_LEAST_SHIFT = 0.005
"""Relative difference of clocks that is worth a sentence; a step of the clock is somewhat more."""
_LEVEL = 0.01
RSS_GROWTH, LEAK_BYTES = "rss_growth_bytes", 2**19
"""Growth of memory with each window that is worth a sentence."""
_FEWEST_CLOCKS = 4
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

COLUMNS = (
    Column("benchmark", "benchmark", kind="name"),
    Column("verdict", "verdict"),
    Column("effect", "effect", show=percent(2, signed=True)),
    Column("interval", "interval", show=interval(2), parts=("low", "high")),
    Column("base", "base"),
    Column("head", "head"),
    Column("pairs", "pairs", parts=("used", "discarded")),
    Column("p", "p", show="{:.2g}".format),
    Column("unit", "unit", kind="data"),
)


def comparison_table(
    comparisons: Sequence[Comparison],
    title: str,
    plan: ComparisonPlan,
    margins: Mapping[str, float] = MappingProxyType({}),
) -> Table:
    """A row for each benchmark; `margins` are of those that have their own."""
    rows: list[Row] = []
    for one in comparisons:
        verdict = Cell(str(one.verdict), STYLES[one.verdict], text=one.word)
        ends = one.base_value, one.head_value
        values = (Cell(value, text=figure_text(value, one.unit)) for value in ends)
        used = str(one.pairs_used)
        used += f" (+{one.pairs_discarded} discarded)" if one.pairs_discarded else ""
        used += f", {one.starts_used} starts" if one.starts_used else ""
        used = "{} + {} files".format(*one.files) if one.files else used
        pairs = Cell((one.pairs_used, one.pairs_discarded), text=used)
        rows.append(
            (one.benchmark, verdict, one.effect, one.interval, *values, pairs, one.p, one.unit)
        )
    is_judged = any(one.verdict.is_clear or one.pairs_used or one.files for one in comparisons)
    caption = _definition(comparisons, plan, margins) if is_judged else ""
    return Table(COLUMNS, rows, title, caption)


def _definition(
    comparisons: Sequence[Comparison], plan: ComparisonPlan, margins: Mapping[str, float]
) -> str:
    """What the verdicts mean under this plan, and what slower and faster are called here."""
    plain = [str(Verdict.SLOWER), str(Verdict.FASTER)]
    words = {one.word for one in comparisons if one.verdict in plain}
    others = sorted(words.difference(plain))
    shown = others if others and not words.intersection(plain) else [*plain, *others]
    names = {one.benchmark for one in comparisons}
    own = ", ".join(f"{100 * margins[name]:g} % of {name}" for name in margins if name in names)
    enough = "four files a side" if any(one.files for one in comparisons) else "six pairs"
    instead = f" Margins of their own: {own}." if own else ""
    return (
        f"{', '.join(shown)}: the change is real ({1000 * plan.alpha:.3g} in 1,000 comparisons "
        f"without one would say so, again at each rerun) and about {100 * plan.minimum_effect:g} % "
        f"or more. equivalent: a typical process is shown to be within {100 * plan.margin:g} %. "
        f"Intervals are of {percentage(plan.confidence, 0)} confidence where there are {enough} "
        f"or more.{instead}"
    )


def worst_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons in the order of `STYLES`, those of one verdict as they were."""
    return sorted(comparisons, key=lambda comparison: list(STYLES).index(comparison.verdict))


def headline(comparisons: Sequence[Comparison]) -> str:
    """The answer in a line: how many benchmarks have which verdict, the worst first."""
    comparisons = [one for one in comparisons if not one.control] or comparisons
    if len(comparisons) == 1:
        effect = comparisons[0].effect
        size = "" if effect is None else f" ({percentage(effect, 2, signed=True)})"
        return f"{comparisons[0].benchmark}: {comparisons[0].word}{size}"
    counts = Counter(comparison.word for comparison in worst_first(comparisons))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def others_lines(
    others: Mapping[str, Mapping[str, Sequence[float]]],
    ends: tuple[str, str],
    units: Mapping[str, str],
) -> list[str]:
    """Figures that were measured and not judged: medians of base and head by metric."""
    lines, said = [], []
    for name, by_end in others.items():
        if all(by_end.get(end) for end in ends):
            base, head = (statistics.median(by_end[end]) for end in ends)
            unit = units.get(name, units.get(name.partition("@")[0], ""))
            values = f"{figure_text(base, unit)} → {figure_text(head, unit)}"
            lines.append(f"{name} {values} ({percentage(head / base - 1, 1, signed=True)})")
            if name == RSS_GROWTH and max(base, head) >= LEAK_BYTES:
                said.append(
                    f"With each window the memory of the server grows by {figure_text(base, unit)} "
                    f"in the base and by {figure_text(head, unit)} in the head: it leaks, or fills "
                    f"a cache. `--metric {name}` judges it."
                )
    return [f"also measured, not judged: {', '.join(lines)}", *said] if lines else []


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
    effect, is_open = answer.effect, answer.verdict is Verdict.INCONCLUSIVE
    if answer.control or effect is None or not is_open or len(pairs) < _FEWEST:
        return ""
    deviation = statistics.stdev(pair.log_ratio for pair in pairs)
    # More pairs would show the same where there is no noise, or where some builds alone differ.
    if not deviation or builds_say(pairs, plan, answer.verdict)[0]:
        return ""
    shown = percentage(effect, 1, signed=True)
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
    sides = [others.get(CPU, {}).get(end, ()) for end in (answer.base, answer.head)]
    is_time = answer.unit in _TIMES and answer.benchmark != CPU
    known = min(map(len, sides)) >= _FEWEST and len(sides[0]) == len(sides[1])
    if not (is_time and known and answer.effect is not None and min(map(min, sides)) > 0):
        return ""
    base, head = (np.log(side) for side in sides)
    effect = math.expm1(float(hodges_lehmann(head - base)))
    low, high = (math.expm1(float(one)) for one in shift_interval(head - base, plan.confidence)[:2])
    if answer.verdict is Verdict.SLOWER and high < answer.effect / 2:
        meaning = "it waits longer"
    elif answer.verdict is Verdict.FASTER and low > answer.effect / 2:
        meaning = "it waits less"
    elif not answer.verdict.is_clear and (low > plan.margin or high < -plan.margin):
        meaning = f"--metric {CPU} judges what it works"
    elif answer.verdict is Verdict.EQUIVALENT and low > plan.margin:
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


def clock_findings(pairs: Iterable[Pair]) -> list[str]:
    """Sentences on clocks and throttling that differ between the commits of pairs.

    A commit can change the clock, by drawing more power or by leaving the GPU idle. Its pairs are
    judged all the same, since discarding them would hide what it does
    (`process.gpu.why_discarded`). But whoever reads the verdict must know that the clock has
    a part in it. `pairs` may be of several benchmarks, which share processes.
    """
    known: dict[tuple[str, float, float], tuple[GpuConditions, GpuConditions]] = {}
    for pair in pairs:
        if pair.base.gpu and pair.head.gpu:
            when = pair.base.device, pair.base.started_at, pair.head.started_at
            known[when] = pair.base.gpu, pair.head.gpu
    both = list(known.values())
    if len(both) < _FEWEST_CLOCKS:
        return []
    found, (bases, heads) = [], zip(*both, strict=True)
    shifts = [math.log(head.sm_clock_mhz / base.sm_clock_mhz) for base, head in both]
    shift = math.expm1(float(hodges_lehmann(shifts)))
    if abs(shift) >= _LEAST_SHIFT and _lie_on_one_side(shifts):
        base, head = (statistics.median(one.sm_clock_mhz for one in end) for end in (bases, heads))
        found.append(
            f"The GPU's clock differs between the commits: {base:.0f} MHz for the base, "
            f"{head:.0f} MHz for the head ({percentage(shift, 1, signed=True)} in a typical one of "
            f"{len(both)} pairs)."
        )
    held = [[bool(throttling(one)) for one in end] for end in (bases, heads)]
    if _lie_on_one_side([float(head) - base for base, head in zip(*held, strict=True)]):
        found.append(
            f"The GPU was throttled while {sum(held[1])} of {len(both)} processes of the head ran, "
            f"and {sum(held[0])} of the base."
        )
    return [f"{sentence} This is part of the difference that was measured." for sentence in found]


def _lie_on_one_side(shifts: Sequence[float]) -> bool:
    """Whether they do by more than chance; of few, all of them."""
    return float(location_p(shifts, is_two_sided=True)) <= max(_LEVEL, smallest_p(len(shifts)))
