"""What appending keys and values costs within a decode step, and what its bytes would take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from asv_bench.output.console import add_figure_columns
from asv_bench.output.tables import figure
from asv_bench.stats.paired import hodges_lehmann, hodges_lehmann_interval

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def over(self, unit: float) -> Estimate:
        """The same in units of `unit`, above 0."""
        return Estimate(self.value / unit, self.low / unit, self.high / unit)

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class AppendTimes:
    """Steps of one length of context, with append's stores and without.

    Attributes
    ----------
    workload
        The one whose run has such steps.
    rows
        Sequences in a step.
    context
        Mean tokens that a sequence attends to in them.
    layers
        Of the model.
    layer_bytes
        Bytes that append must read and write in one of them.
    whole_us, bare_us
        Microseconds of a step by capture and round, with the stores and without. Captures of
        both are made and timed in turn.
    """

    workload: str
    rows: int
    context: float
    layers: int
    layer_bytes: int
    whole_us: Sequence[Sequence[float]]
    bare_us: Sequence[Sequence[float]]

    @property
    def costs_us(self) -> list[float]:
        """What append costs a layer, by capture: medians of the rounds.

        Two captures of one step differ by up to 0.9 %, its rounds by less: so it is captures that
        are compared, each with the other kind's that was made beside it.
        """
        return [
            (statistics.median(whole) - statistics.median(bare)) / self.layers
            for whole, bare in zip(self.whole_us, self.bare_us, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class AppendCost:
    """What append costs over some contexts of a workload's steps, each counting the same."""

    parts: Sequence[AppendTimes]

    @property
    def context(self) -> float:
        """Mean tokens that a sequence attends to."""
        return statistics.fmean(part.context for part in self.parts)

    @property
    def step_us(self) -> float:
        """Microseconds of a whole step."""
        return statistics.fmean(
            statistics.median(map(statistics.median, part.whole_us)) for part in self.parts
        )

    @property
    def layer_us(self) -> Estimate:
        """Microseconds a layer, estimated from captures (Hodges and Lehmann)."""
        every = zip(*(part.costs_us for part in self.parts), strict=True)
        costs = [statistics.fmean(costs) for costs in every]
        return Estimate(hodges_lehmann(costs), *hodges_lehmann_interval(costs, CONFIDENCE))

    def of_byte_time(self, bytes_per_second: float) -> Estimate:
        """Times what its bytes take at that bandwidth."""
        return self.layer_us.over(1e6 * self.parts[0].layer_bytes / bytes_per_second)

    def to_json(self, bytes_per_second: float) -> dict[str, Any]:
        """The estimates as JSON-ready values."""
        return {
            "workload": self.parts[0].workload,
            "rows": self.parts[0].rows,
            "context": self.context,
            "step_us": self.step_us,
            "layer_us": asdict(self.layer_us),
            "of_byte_time": asdict(self.of_byte_time(bytes_per_second)),
        }


def append_costs(parts: Sequence[AppendTimes]) -> list[AppendCost]:
    """What append costs over a whole run, given its parts, and in each where there are several."""
    each = [AppendCost([part]) for part in parts]
    return each if len(each) == 1 else [AppendCost(parts), *each]


def append_table(costs: Sequence[AppendCost], bytes_per_second: float) -> Table:
    """A line for every cost."""
    table = Table(title=f"read bandwidth {bytes_per_second / 1e12:.2f} TB/s", title_justify="left")
    table.add_column("workload", overflow="fold")
    columns = ("rows", "context", "step, µs", "append a layer, µs", "of its bytes' time")
    add_figure_columns(table, *columns)
    for cost in costs:
        table.add_row(
            cost.parts[0].workload + (", all" if len(cost.parts) > 1 else ""),
            str(cost.parts[0].rows),
            figure(cost.context, 0),
            figure(cost.step_us, 1),
            str(cost.layer_us),
            str(cost.of_byte_time(bytes_per_second)),
        )
    return table
