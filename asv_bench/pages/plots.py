"""A figure's history as an inline SVG, in the colours of the page around it."""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Figure
from asv_bench.output.drawing import Palette, draw_svg, quieten
from asv_bench.output.figure_rows import unit_of

SIZE_INCHES = (4.3, 2.0)
MAX_TICKS = 10

# Variables of the page.
PALETTE = Palette("ink", "faint", "accent")


def plot_history(
    title: str,
    figures: Sequence[Figure],
    commits: Sequence[Commit],
    *,
    marked: str | None = None,
) -> str:
    """Draw one series over commits: every sample, the medians, and the interquartile range.

    `title` is read out in place of the drawing. Commits without a figure leave a gap. A line is
    drawn before the commit with the hash `marked`: what is to its right is after it.
    """
    by_commit = {figure.commit: figure for figure in figures}
    shown = [commit for commit in commits if commit.hash in by_commit]
    medians = [by_commit[commit.hash].median for commit in shown]
    unit, factor = figures[0].unit, 1.0
    if unit == "seconds":
        unit, factor = unit_of(max(medians))

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        _draw(axes, [by_commit[commit.hash] for commit in shown], factor)
        _label(axes, shown, unit)
        for position, commit in enumerate(shown):
            if commit.hash == marked:
                ink = PALETTE["ink"]
                axes.axvline(position - 0.5, color=ink, linewidth=1.0, linestyle="--", zorder=1)

    svg = draw_svg(draw, PALETTE, size=SIZE_INCHES, font_size=8.5, salt=title)
    return _inline(svg, title)


def _draw(axes: Axes, figures: Sequence[Figure], factor: float) -> None:
    faint, accent = PALETTE["faint"], PALETTE["accent"]
    lower, middle, upper = [], [], []
    for position, figure in enumerate(figures):
        values = [factor * sample for sample in figure.samples]
        axes.scatter([position] * len(values), values, s=9, color=faint, linewidths=0, zorder=2)
        first, second, third = _quartiles(values)
        lower.append(first)
        middle.append(second)
        upper.append(third)
    positions = range(len(figures))
    axes.fill_between(positions, lower, upper, color=accent, alpha=0.18, linewidth=0, zorder=1)
    axes.plot(positions, middle, color=accent, linewidth=1.6, marker="o", markersize=3.5, zorder=3)


def _label(axes: Axes, commits: Sequence[Commit], unit: str) -> None:
    every = math.ceil(len(commits) / MAX_TICKS)
    ticks = range(0, len(commits), every)
    axes.set_xticks(list(ticks), [commits[tick].short for tick in ticks], rotation=30, ha="right")
    axes.set_ylabel(unit)
    axes.margins(x=0.04, y=0.15)
    quieten(axes, PALETTE, grid="y")


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    first, second, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, second, third


def _inline(svg: str, title: str) -> str:
    """The element with a name for screen readers, and as wide as its place."""
    # A fixed size would not follow the column; the view box keeps the proportions.
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r'\1 role="img"', svg, count=1)
    return svg.replace("<svg", f'<svg aria-label="{html.escape(title)}"', 1)
