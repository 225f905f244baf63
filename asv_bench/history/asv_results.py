"""Reading asv's result files.

A results directory holds `benchmarks.json`, and for each machine a folder with `machine.json` and
one file per commit and environment. A result file stores, per benchmark, a row of columns; the
columns used here are the values, the parameters and the samples. See asv's developer
documentation ("benchmark suite layout and file formats").
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_RESULTS = ("machine.json", "benchmarks.json")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What asv knows about one `track_` method."""

    name: str
    unit: str
    param_names: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Series:
    """What one figure is filed under, whatever the commit: benchmark and parameters."""

    benchmark: str
    params: tuple[tuple[str, str], ...]

    @property
    def subject(self) -> str:
        """What is measured: the benchmark's name without the figure."""
        return self.benchmark.rpartition(".")[0]

    @property
    def figure(self) -> str:
        """Which figure of it: the method's name without its prefix."""
        return self.benchmark.rpartition(".")[2].removeprefix("track_")

    @property
    def label(self) -> str:
        """The parameters' values, readable."""
        return ", ".join(
            value if name in ("model", "shape", "kind", "way", "percentile") else f"{name} {value}"
            for name, value in self.params
        )

    def param(self, name: str) -> str | None:
        """The value of one parameter, None where there is no such."""
        return dict(self.params).get(name)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one commit on one machine.

    Attributes
    ----------
    series
        What it is a figure of.
    unit
        "seconds", or what it counts.
    commit, committed_ms
        The full hash, and the commit's date in milliseconds since 1970.
    samples
        One value per process; empty where the benchmark failed.
    started_ms
        When it was measured, in milliseconds since 1970.
    """

    series: Series
    unit: str
    machine: str
    commit: str
    committed_ms: int
    samples: tuple[float, ...]
    started_ms: int

    @property
    def failed(self) -> bool:
        """Whether the benchmark ran and gave no figure."""
        return not self.samples

    @property
    def median(self) -> float:
        """The median over processes; NaN where the benchmark failed."""
        return statistics.median(self.samples) if self.samples else math.nan

    @property
    def spread(self) -> float:
        """Half the interquartile range over the median; NaN below three samples."""
        if len(self.samples) < 3 or self.median == 0:
            return math.nan
        lower, _, upper = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (upper - lower) / 2 / self.median


@dataclass(frozen=True, slots=True)
class Results:
    """Everything in a results directory, oldest commit first."""

    benchmarks: Mapping[str, Benchmark]
    machines: Mapping[str, Mapping[str, str]]
    figures: tuple[Figure, ...]

    def of_commit(self, commit: str, machine: str) -> list[Figure]:
        """The figures of one commit on one machine."""
        return [
            figure
            for figure in self.figures
            if figure.commit == commit and figure.machine == machine
        ]


def read_results(directory: Path) -> Results:
    """Read a results directory; one that does not exist holds nothing.

    Figures of benchmarks that are no longer there, or whose version has changed since, are left
    out: today's benchmark means something else. Skipped parameters are left out too.

    Raises
    ------
    ValueError
        If a file is not what asv writes.
    """
    benchmarks = {
        name: Benchmark(name, entry["unit"], tuple(entry["param_names"]), entry["version"])
        for name, entry in _read_object(directory / "benchmarks.json").items()
        if isinstance(entry, dict)
    }
    machines: dict[str, dict[str, str]] = {}
    figures: list[Figure] = []
    for description in sorted(directory.glob("*/machine.json")):
        facts = _read_object(description)
        machine = str(facts["machine"])
        machines[machine] = {
            key: str(value) for key, value in facts.items() if key not in ("machine", "version")
        }
        for path in sorted(description.parent.glob("*.json")):
            if path.name not in NOT_RESULTS:
                figures.extend(_figures_of(path, machine, benchmarks))
    figures.sort(key=lambda figure: (figure.committed_ms, figure.commit, figure.series.benchmark))
    return Results(benchmarks, machines, tuple(figures))


def _figures_of(path: Path, machine: str, benchmarks: Mapping[str, Benchmark]) -> Iterator[Figure]:
    content = _read_object(path)
    try:
        commit, committed_ms = content["commit_hash"], content["date"]
        column_names = content["result_columns"]
        for name, row in content["results"].items():
            # asv leaves out the last columns of a row where they are empty.
            columns = dict(zip(column_names, row, strict=False))
            benchmark = benchmarks.get(name)
            if benchmark is None or columns.get("version") != benchmark.version:
                continue
            for params, value, samples in _by_parameters(columns):
                if isinstance(value, float) and math.isnan(value):
                    continue
                yield Figure(
                    series=Series(name, tuple(zip(benchmark.param_names, params, strict=True))),
                    unit=benchmark.unit,
                    machine=machine,
                    commit=commit,
                    committed_ms=committed_ms,
                    samples=_kept(value, samples),
                    started_ms=columns.get("started_at") or 0,
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a result file of asv: {error!r}") from error


def _by_parameters(
    columns: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], float | None, list[float] | None]]:
    combinations = list(itertools.product(*(columns["params"] or [])))
    # A column that is absent, or None as a whole, is None for every combination.
    values = columns.get("result") or [None] * len(combinations)
    samples = columns.get("samples") or [None] * len(combinations)
    for texts, value, sample in zip(combinations, values, samples, strict=True):
        yield tuple(_plain(text) for text in texts), value, sample


def _kept(value: float | None, samples: list[float] | None) -> tuple[float, ...]:
    if samples:
        return tuple(samples)
    # asv keeps the median alone where it was not asked for samples.
    return () if value is None else (value,)


def _plain(text: str) -> str:
    """A parameter without the quotes of its `repr`."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object.")
    return content
