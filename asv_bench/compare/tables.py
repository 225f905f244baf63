"""Comparisons as a person reads them: a table and sentences."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.measure.samples import Pair
from asv_bench.output.figure_rows import figure_text
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent, percentage
from asv_bench.process.gpu import GpuConditions, throttling
from asv_bench.stats.paired import hodges_lehmann, location_p, smallest_p

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
_FEWEST = 4


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
    words = {one.word for one in comparisons if one.verdict in (Verdict.SLOWER, Verdict.FASTER)}
    names = [one.benchmark for one in comparisons]
    margins = {name: margin for name, margin in margins.items() if name in names}
    enough = "four files a side" if any(one.files for one in comparisons) else "six pairs"
    caption = _definition(plan, margins, words, enough) if is_judged else ""
    return Table(COLUMNS, rows, title, caption)


def _definition(
    plan: ComparisonPlan, margins: Mapping[str, float], words: Collection[str], enough: str
) -> str:
    """What the verdicts mean under this plan; `words` are what slower and faster are called."""
    plain = [str(Verdict.SLOWER), str(Verdict.FASTER)]
    others = sorted({*words}.difference(plain))
    shown = others if others and not {*words}.intersection(plain) else [*plain, *others]
    own = ", ".join(f"{100 * margin:g} % of {name}" for name, margin in margins.items())
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
    ranks = {verdict: rank for rank, verdict in enumerate(STYLES)}
    return sorted(comparisons, key=lambda comparison: ranks[comparison.verdict])


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
    if len(both) < _FEWEST:
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
    return float(location_p(shifts, "two-sided")) <= max(_LEVEL, smallest_p(len(shifts)))
