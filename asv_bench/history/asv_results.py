"""Reading asv's result files.

A results directory holds `benchmarks.json`, and for each machine a folder with `machine.json` and
one file per commit and environment. A result file stores, per benchmark, a row of columns; see
asv's developer documentation ("benchmark suite layout and file formats").
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from asv_bench.output.stored_json import (
    UnreadableFile,
    count,
    moment,
    parsed,
    positive,
    read_stored,
    require_schema,
    shown,
    text,
)

BENCHMARKS = "benchmarks.json"
NOT_RESULTS = ("machine.json", BENCHMARKS)
TIMES = ("seconds", "floors")
"""Units whose figures cannot be zero; what the others count can."""
_VERSIONS = {"benchmarks.json": 2, "machine.json": 1, "results": 2}
"""Of asv's files, as this reader knows them."""
_RESULT_FILE = "a result file of asv"
_FULL_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

Better: TypeAlias = Literal["", "lower", "higher"]
"""Which of two figures of a subject's metric is better; of what asv measures (""), the lower is."""
EnvironmentFacts: TypeAlias = tuple[tuple[str, str], ...]
"""What a figure was measured with beside the commit, as names and values in the order of the names:
Python, torch, Triton, the driver, the host's hardware, asv's environment."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What asv knows about one `track_` method, or about a metric of a subject."""

    name: str
    unit: str
    param_names: tuple[str, ...]
    version: str
    better: Better = ""
    params: tuple[tuple[str, ...], ...] = ()


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
    """One figure of one commit on one machine."""

    series: Series
    unit: str  # "seconds", or what it counts
    machine: str
    commit: str  # its full hash
    committed_ms: int  # the commit's date, in milliseconds since 1970
    samples: tuple[float, ...]  # one value per process; empty where the benchmark failed
    started_ms: int  # when it was measured, in milliseconds since 1970
    environment: EnvironmentFacts = ()
    """With what; those of different environments are of different series."""
    better: Better = ""  # of a metric

    @property
    def is_metric(self) -> bool:
        """Whether it is of a subject's metric rather than of a benchmark that asv ran."""
        return bool(self.better)

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
    """One for each series, commit, machine and environment. Where several sessions measured it,
    that of the session with the most samples, and of equal ones the newest."""
    complaints: tuple[str, ...] = ()  # a sentence for each file of which something was left out
    files: Mapping[Path, tuple[Figure, ...]] = field(default_factory=dict)
    """What was read of each result file."""
    faulty: frozenset[Path] = frozenset()  # those of which something was left out

    def environments_of(self, machine: str) -> list[EnvironmentFacts]:
        """The environments in which a machine measured, the newest first."""
        newest: dict[EnvironmentFacts, int] = {}
        for figure in self.figures:
            if figure.machine == machine:
                environment = figure.environment
                newest[environment] = max(newest.get(environment, 0), figure.started_ms)
        return sorted(newest, key=lambda environment: -newest[environment])


def differing(environment: EnvironmentFacts, others: Collection[EnvironmentFacts]) -> str:
    """The facts of an environment that are not the same in all of the others, readable."""
    names = [
        name for name, value in environment if any((name, value) not in other for other in others)
    ]
    facts = dict(environment)
    # asv's name for an environment repeats what is in it.
    told = [name for name in names if name != "env_name"] or names
    return ", ".join(f"{name} {facts[name]}" for name in told)


def read_results(directory: Path) -> Results:
    """Read a results directory; one that does not exist holds nothing.

    Figures of benchmarks that are no longer there, or whose version has changed since, are left
    out, as are skipped parameters. What cannot be right is left out with a complaint.
    """
    complaints: list[str] = []
    benchmarks = read_benchmarks(directory / BENCHMARKS, complaints)
    machines: dict[str, dict[str, str]] = {}
    files: dict[Path, tuple[Figure, ...]] = {}
    faulty: set[Path] = set()
    for folder in sorted(path for path in directory.glob("*") if path.is_dir()):
        paths = [path for path in sorted(folder.glob("*.json")) if path.name not in NOT_RESULTS]
        description = folder / "machine.json"
        if not paths and not description.is_file():
            continue
        try:
            machine, facts = read_stored(description, "asv's machine.json", _machine)
        except UnreadableFile as error:
            machine, facts = folder.name, {}
            complaints.append(f"{error} The machine goes by its folder's name, {machine}.")
        machines[machine] = facts
        for path in paths:
            wrong: list[str] = []
            try:
                files[path] = read_stored(
                    path, _RESULT_FILE, _File(path, machine, benchmarks, wrong).figures
                )
            except UnreadableFile as error:
                wrong.append(f"{error} It is left out.")
            if wrong:
                more = f" So are {len(wrong) - 1} more of its entries." if wrong[1:] else ""
                complaints.append(wrong[0] + more)
                faulty.add(path)
    figures = best_sessions(figure for figures in files.values() for figure in figures)
    return Results(benchmarks, machines, figures, tuple(complaints), files, frozenset(faulty))


def dates_of(figures: Iterable[Figure]) -> dict[str, int]:
    """When the commits of figures were made, in milliseconds since 1970, by full hash."""
    return {figure.commit: figure.committed_ms for figure in figures}


def best_sessions(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Of the figures that differ in their session alone, the one of most samples, else the newest.

    In the order of their commits' dates.
    """
    best: dict[tuple[Series, str, EnvironmentFacts, str], Figure] = {}
    for figure in figures:
        key = (figure.series, figure.machine, figure.environment, figure.commit)
        other = best.setdefault(key, figure)
        if (len(figure.samples), figure.started_ms) > (len(other.samples), other.started_ms):
            best[key] = figure
    return tuple(
        sorted(
            best.values(),
            key=lambda figure: (figure.committed_ms, figure.commit, figure.series.benchmark),
        )
    )


def read_benchmarks(path: Path, complaints: list[str]) -> dict[str, Benchmark]:
    """What asv knows about each benchmark; one that is not described right is left out.

    A sentence for each of these is appended to `complaints`.
    """
    found: dict[str, Benchmark] = {}
    try:
        entries = read_stored(path, "asv's benchmarks.json", _entries) if path.exists() else {}
    except UnreadableFile as error:
        complaints.append(f"{error} Without it no result can be read; `bench` writes it again.")
        return {}
    for name, entry in entries.items():
        if name == "version":
            continue
        try:
            found[name] = parsed(path, "asv's benchmarks.json", entry, partial(_benchmark, name))
        except UnreadableFile as error:
            complaints.append(f"{error} {name} is left out.")
    return found


def _entries(content: dict[str, Any]) -> dict[str, Any]:
    _require_version(content, "benchmarks.json")
    return content


def _require_version(content: dict[str, Any], kind: str) -> None:
    if "version" in content:
        require_schema(content, _VERSIONS[kind], "version")


def _benchmark(name: str, entry: dict[str, Any]) -> Benchmark:
    names = tuple(text(param) for param in _list(entry["param_names"]))
    unit, better = entry["unit"], entry.get("better", "")
    if not isinstance(unit, str):
        raise TypeError(f"the unit is {shown(unit)}, and no text")
    if better not in get_args(Better):
        raise ValueError(f"better is {shown(better)}, and can be lower or higher")
    values = tuple(tuple(map(text, _list(of_one))) for of_one in _list(entry.get("params", [])))
    return Benchmark(name, unit, names, text(entry["version"]), better, values)


def _machine(content: dict[str, Any]) -> tuple[str, dict[str, str]]:
    _require_version(content, "machine.json")
    facts = {key: str(value) for key, value in content.items() if key not in ("machine", "version")}
    return text(content["machine"]), facts


@dataclass(frozen=True, slots=True)
class _File:
    """One result file being read; sentences about faulty entries go to `wrong`."""

    path: Path
    machine: str
    benchmarks: Mapping[str, Benchmark]
    wrong: list[str]

    def figures(self, content: dict[str, Any]) -> tuple[Figure, ...]:
        """All figures of the file."""
        _require_version(content, "results")
        commit, committed_ms = text(content["commit_hash"]), moment(content["date"])
        if not _FULL_HASH.fullmatch(commit):
            raise ValueError(f"{shown(commit)} is no full hash of a commit")
        names = [text(name) for name in _list(content["result_columns"])]
        environment = _environment(content)
        figures: list[Figure] = []
        for name, row in content["results"].items():
            benchmark = self.benchmarks.get(name)
            try:
                # asv leaves out the last columns of a row where they are empty.
                columns = dict(zip(names, _list(row), strict=False))
                if benchmark is None or columns.get("version") != benchmark.version:
                    continue
                started_ms = moment(columns.get("started_at") or 0)
                of_row = [
                    Figure(
                        series=Series(name, tuple(zip(benchmark.param_names, params, strict=True))),
                        unit=benchmark.unit,
                        machine=self.machine,
                        commit=commit,
                        committed_ms=committed_ms,
                        samples=samples,
                        started_ms=started_ms,
                        environment=environment,
                        better=benchmark.better,
                    )
                    for params, samples in self._by_parameters(benchmark, columns)
                ]
            except (TypeError, ValueError, AttributeError) as error:
                self.wrong.append(
                    f"{self.path}: {name} is no row of asv ({error}). It is left out."
                )
            else:
                figures += of_row
        return tuple(figures)

    def _by_parameters(
        self, benchmark: Benchmark, columns: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        """Parameters, and the samples that are figures; none where the benchmark failed."""
        combinations = list(itertools.product(*map(_list, columns.get("params") or [])))
        # A column that is absent, or None as a whole, is None for every combination.
        nothing = [None] * len(combinations)
        values, samples = (_list(columns.get(name) or nothing) for name in ("result", "samples"))
        for texts, value, measured in zip(combinations, values, samples, strict=True):
            params = tuple(map(plain, texts))
            if isinstance(value, float) and math.isnan(value):
                continue
            # asv keeps the median alone where it was not asked for samples.
            stored = [] if value is None else [value]
            if measured is not None:
                stored = _list(measured)
            kept = self._figures_among(stored, benchmark, params)
            if kept or not stored:
                yield params, kept

    def _figures_among(
        self, stored: Sequence[Any], benchmark: Benchmark, params: tuple[str, ...]
    ) -> tuple[float, ...]:
        figure_of = positive if benchmark.unit in TIMES else count
        kept: list[float] = []
        for sample in stored:
            try:
                kept.append(figure_of(sample))
            except ValueError as error:
                self.wrong.append(
                    f"{self.path}: a sample of {benchmark.name}({', '.join(params)}) is wrong: "
                    f"{error}. It is left out."
                )
        return tuple(kept)


def _environment(content: Mapping[str, Any]) -> EnvironmentFacts:
    """What a result file says of the environment; the machine's name is known already."""
    facts = {key: str(value) for key, value in dict(content.get("params") or {}).items()}
    facts.pop("machine", None)
    for key in ("python", "env_name"):
        if content.get(key) is not None:
            facts[key] = str(content[key])
    return tuple(sorted(facts.items()))


def plain(param: str) -> str:
    """A parameter without the quotes of its `repr`."""
    try:
        return str(ast.literal_eval(text(param)))
    except (SyntaxError, RecursionError, MemoryError):
        return param
    except ValueError:
        return text(param)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{shown(value)} is no list")
    return value
