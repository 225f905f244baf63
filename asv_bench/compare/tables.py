"""Comparisons as a person reads them: a table, sentences, and markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from asv_bench.compare.plan import ComparisonPlan
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.git.repository import Commit
from asv_bench.output.console import add_figure_columns
from asv_bench.output.figure_rows import duration
from asv_bench.output.tables import MISSING

STYLES = {
    Verdict.SLOWER: "bold red",
    Verdict.FASTER: "bold green",
    Verdict.EQUIVALENT: "green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.FAILED: "red",
    Verdict.NOT_MEASURED: "dim",
    Verdict.SAME: "green",
}
_HEADERS = ("verdict", "effect", "interval", "base", "head", "pairs", "p")


def comparison_table(
    comparisons: Sequence[Comparison], units: Mapping[str, str], title: str, plan: ComparisonPlan
) -> Table:
    """A row for each benchmark; `units` are by benchmark."""
    table = Table(title=title, title_justify="left", caption=definition(plan))
    table.add_column("benchmark", no_wrap=True)
    add_figure_columns(table, *_HEADERS)
    for comparison in comparisons:
        verdict, *figures = _cells(comparison, units[comparison.benchmark])
        table.add_row(
            Text(comparison.benchmark), Text(verdict, STYLES[comparison.verdict]), *figures
        )
    return table


def definition(plan: ComparisonPlan) -> str:
    """What the verdicts mean under this plan."""
    return (
        f"slower, faster: by at least {100 * plan.minimum_effect:g} % and significant; "
        f"{percentage(plan.alpha, 1)} of comparisons without a difference say so. equivalent: "
        f"shown to be within {100 * plan.margin:g} %. Intervals are of "
        f"{percentage(plan.confidence, 0)} confidence, p of signed-rank and sign test together."
    )


def markdown(
    base: Commit,
    head: Commit,
    comparisons: Sequence[Comparison],
    units: Mapping[str, str],
    plan: ComparisonPlan,
    facts: Sequence[str],
) -> str:
    """The comparison as a page of GitHub's markdown; `facts` are sentences below the table."""
    rows = [
        (f"`{comparison.benchmark}`", *_cells(comparison, units[comparison.benchmark]))
        for comparison in comparisons
    ]
    reasons = [
        f"- `{comparison.benchmark}`: {_inline(comparison.reason)}"
        for comparison in comparisons
        if comparison.reason
    ]
    lines = [
        f"### {headline(comparisons)}",
        "",
        f"{_described(head)} against {_described(base)}",
        "",
        f"| benchmark | {' | '.join(_HEADERS)} |",
        f"| --- | --- |{' ---: |' * (len(_HEADERS) - 1)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
        "",
        *([*reasons, ""] if reasons else []),
        f"<sub>{definition(plan)} {' '.join(facts)}</sub>",
        "",
    ]
    return "\n".join(lines)


def headline(comparisons: Sequence[Comparison]) -> str:
    """The answer in a line: how many benchmarks have which verdict, the worst first."""
    counts = {
        verdict: sum(comparison.verdict is verdict for comparison in comparisons)
        for verdict in Verdict
    }
    present = [verdict for verdict in _BY_CONCERN if counts[verdict]]
    if len(comparisons) == 1:
        effect = comparisons[0].effect
        size = "" if effect is None else f" ({percentage(effect, 2, signed=True)})"
        return f"{comparisons[0].benchmark}: {comparisons[0].verdict}{size}"
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in present)


_BY_CONCERN = (
    Verdict.SLOWER,
    Verdict.FAILED,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_MEASURED,
    Verdict.FASTER,
    Verdict.EQUIVALENT,
    Verdict.SAME,
)


def percentage(fraction: float, digits: int, *, signed: bool = False) -> str:
    """A fraction as a percentage, with its sign where that is asked for."""
    if math.isinf(fraction):
        return "∞" if fraction > 0 else "-∞"
    return f"{100 * fraction:{'+' if signed else ''}.{digits}f} %"


def _cells(comparison: Comparison, unit: str) -> tuple[str, ...]:
    pairs = str(comparison.pairs_used)
    if comparison.pairs_discarded:
        pairs += f" (+{comparison.pairs_discarded} discarded)"
    return (
        str(comparison.verdict),
        MISSING if comparison.effect is None else percentage(comparison.effect, 2, signed=True),
        interval_text(comparison),
        _value(comparison.base_value, unit),
        _value(comparison.head_value, unit),
        pairs,
        MISSING if comparison.p is None else f"{comparison.p:.2g}",
    )


def interval_text(comparison: Comparison) -> str:
    """The interval of the effect in per cent, or a dash where there is none."""
    if comparison.interval is None:
        return MISSING
    low, high = (percentage(bound, 2, signed=True) for bound in comparison.interval)
    return f"{low} to {high}"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    return duration(value) if unit == "seconds" else f"{value:.4g} {unit}"


def _described(commit: Commit) -> str:
    return f"**{commit.short}** {_inline(commit.subject)}"


def _inline(text: str) -> str:
    """Text in one line of which markdown and HTML make nothing."""
    line = " ".join(text.split())
    for special in r"\`*_[]<>|#":
        line = line.replace(special, f"\\{special}")
    return line
