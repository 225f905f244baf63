"""What a session of measuring gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asv_bench.errors import MeasurementFailed
from asv_bench.git.repository import short
from asv_bench.history.asv_results import Figure
from asv_bench.output.contradictions import processes_apart


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures that a session gave, and why benchmarks gave none, by their names."""

    figures: tuple[Figure, ...]
    failed: Mapping[str, str]

    def require_all(self) -> None:
        """Raise MeasurementFailed where a benchmark gave no figure at some commit."""
        if self.failed:
            reasons = "; ".join(f"{name} ({why})" for name, why in self.failed.items())
            raise MeasurementFailed(
                f"{len(self.failed)} benchmarks failed and gave no figure: {reasons}"
            )


def process_contradictions(figures: Sequence[Figure]) -> list[str]:
    """What to know where processes of one figure and commit gave values far apart."""
    unit = "s" if all(figure.unit == "seconds" for figure in figures) else ""
    samples: list[tuple[str, float]] = []
    for figure in figures:
        params = ", ".join(repr(value) for _, value in figure.series.params)
        name = figure.series.benchmark + (f"({params})" if params else "")
        samples += [(f"{name} of {short(figure.commit)}", sample) for sample in figure.samples]
    return processes_apart(samples, unit)
