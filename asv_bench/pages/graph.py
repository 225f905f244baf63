"""One figure of one machine by commit: the lines of its graph, and what is marked on them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import Better, Figure, Series
from asv_bench.history.standing import JudgedChange
from asv_bench.output.figure_rows import METRICS, figure_text, spaced, spread_text
from asv_bench.output.table import percentage
from asv_bench.pages.records import StoredVerdict

FIGURE_NAMES = {"tpot": "TPOT", "ttft": "TTFT", "itl": "ITL"}
_TOLD = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One series in one environment: figures by their places on the axis, ascending.

    `environment` is the place of the environment among those of the machine.
    """

    environment: int
    figures: dict[int, Figure]

    @property
    def last_place(self) -> int:
        """Where it was measured last."""
        return next(reversed(self.figures))


@dataclass(frozen=True, slots=True)
class Graph:
    """One series of one machine."""

    series: Series
    unit: str
    better: Better
    lines: tuple[Line, ...] = ()  # one for each environment, the last measured at the end
    changes: tuple[JudgedChange, ...] = ()  # in the order of places
    verdicts: tuple[StoredVerdict, ...] = ()  # on two commits that were measured
    draft: Figure | None = None  # of a working tree that differs from its commit

    @property
    def newest(self) -> Figure | None:
        """The figure that was measured last; None where only a working tree was measured."""
        return self.lines[-1].figures[self.lines[-1].last_place] if self.lines else None

    @property
    def spread(self) -> str:
        """That of the newest figure."""
        return "" if self.newest is None else spread_text(self.newest.spread)

    @property
    def step(self) -> str:
        """The newest figure against the one before; "" where there is none."""
        earlier = list(self.lines[-1].figures.values())[:-1] if self.lines else []
        bases = [figure for figure in earlier if is_base(figure)]
        return change_between(self.newest, bases[-1] if bases else None)

    @property
    def drafted(self) -> str:
        """What a changed working tree gave, and against the newest figure."""
        change = change_between(self.draft, self.newest)
        return self.text_of(self.draft) + (f" ({change})" if change else "")

    @property
    def group(self) -> str:
        """What is measured, in words."""
        return METRICS if self.better else spaced(self.series.subject.rpartition(".")[2])

    @property
    def title(self) -> str:
        """Which figure of it, in words."""
        if self.better:
            return self.series.benchmark
        name = FIGURE_NAMES.get(self.series.figure) or self.series.figure.replace("_", " ")
        return f"{name}, {self.series.label}" if self.series.label else name

    @property
    def pattern(self) -> str:
        """A regular expression for `--metric` that finds it alone."""
        values = ", ".join(
            value if re.fullmatch(r"-?\d+(\.\d+)?", value) else f".?{_escaped(value)}.?"
            for _, value in self.series.params
        )
        name = _escaped(self.series.benchmark)
        return rf"^{name}\({values}\)$" if values else f"^{name}$"

    def text_of(self, figure: Figure | None) -> str:
        """A figure with the unit, "failed", or nothing where there is none."""
        if figure is None:
            return ""
        return "failed" if figure.failed else figure_text(figure.median, self.unit)

    def trend(self, commits: Sequence[Commit]) -> str:
        """How it went in one sentence, for those who do not see the graph."""
        if not self.lines:
            return "Measured in no commit of this line."
        line = self.lines[-1].figures
        figures = {place: figure for place, figure in line.items() if not figure.failed}
        if not figures:
            return "Failed wherever it was measured."
        first, last = min(figures), max(figures)
        end = f"{self.text_of(figures[last])} at {commits[last].short}"
        if first == last:
            return f"{end}, measured once."
        change = change_between(figures[last], figures[first])
        told = [
            f"{one.state}: {percentage(one.change.effect, 1, signed=True)} at "
            f"{one.change.commit.short}"
            for one in reversed(self.changes[-_TOLD:])
        ]
        more = len(self.changes) - len(told)
        told += [f"{more} earlier changes"] if more else []
        return (
            f"{self.text_of(figures[first])} at {commits[first].short} to {end}"
            f"{change and f', {change}'} over {len(figures)} measured; "
            f"{', '.join(told) or 'no change found'}."
        )


def is_base(figure: Figure) -> bool:
    """Whether others can be said as a change against it."""
    return not figure.failed and bool(figure.median)


def change_between(figure: Figure | None, before: Figure | None) -> str:
    """A figure as a change against another; "" where there are no two to compare."""
    if figure is None or before is None or figure.failed or not is_base(before):
        return ""
    return percentage(figure.median / before.median - 1, 1, signed=True)


def quartiles(figure: Figure) -> tuple[float, float]:
    """The first and third quartile over processes; the median where there is only one."""
    if len(figure.samples) < 2:
        return figure.median, figure.median
    first, _, third = statistics.quantiles(figure.samples, n=4, method="inclusive")
    return first, third


def order_of(graph: Graph) -> tuple[int, str, tuple[tuple[int, str], ...]]:
    """Where a graph stands among those of its machine."""
    modules = ("scheduler", "streaming", "decode", "kernels", "host")
    module = graph.series.benchmark.split(".")[0]
    place = modules.index(module) if module in modules else len(modules)
    # Numbers in their own order: batch 8 before batch 64.
    values = tuple(
        (int(value) if value.isdecimal() else 0, value) for _, value in graph.series.params
    )
    return place, graph.series.benchmark, values


def _escaped(text: str) -> str:
    # A quote would end that of the shell, and a dot finds one too.
    return re.escape(text).replace("'", ".")
