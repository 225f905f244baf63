"""Reading asv's result files.

A results directory holds `benchmarks.json`, and for each machine a folder with `machine.json` and
one file per commit and environment. A result file stores, per benchmark, a row of columns; see
asv's developer documentation ("benchmark suite layout and file formats").
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import shutil
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from asv_bench.output.destinations import write_text
from asv_bench.output.stored_json import (
    Moment,
    Text,
    UnreadableFile,
    count,
    decoded,
    parsed,
    positive,
    read_stored,
    require_schema,
    text,
)

BENCHMARKS = "benchmarks.json"
NOT_RESULTS = ("machine.json", BENCHMARKS)
TIMES = ("seconds", "floors")
"""Units whose figures cannot be zero; what the others count can."""

Better: TypeAlias = Literal["", "lower", "higher"]
"""Which of two figures of a subject's metric is better; of what asv measures (""), the lower is."""
EnvironmentFacts: TypeAlias = tuple[tuple[str, str], ...]
"""What a figure was measured with beside the commit, as names and values in the order of the names:
Python, torch, Triton, the driver, the host's hardware, asv's environment."""


class Benchmark(msgspec.Struct, frozen=True):
    """What asv knows about one `track_` method, or about a metric of a subject."""

    name: str
    unit: str
    param_names: tuple[Text, ...]
    version: Text
    better: Better = ""
    params: tuple[tuple[Text, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """What one figure is filed under, whatever the commit: benchmark and parameters."""

    benchmark: str
    params: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The benchmark with its parameters, as asv prints it but for the quotes of texts."""
        values = ", ".join(value for _, value in self.params)
        return f"{self.benchmark}({values})" if values else self.benchmark

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
            read = partial(_figures, path, machine, benchmarks, wrong)
            try:
                files[path] = read_stored(path, "a result file of asv", read)
            except UnreadableFile as error:
                wrong.append(f"{error} It is left out.")
            if wrong:
                more = f" So are {len(wrong) - 1} more of its entries." if wrong[1:] else ""
                complaints.append(wrong[0] + more)
                faulty.add(path)
    best = _best_sessions(figure for figures in files.values() for figure in figures)
    return Results(benchmarks, machines, best, tuple(complaints), files, frozenset(faulty))


def read_benchmarks(path: Path, complaints: list[str]) -> dict[str, Benchmark]:
    """What asv knows about each benchmark; one that is not described right is left out.

    A sentence for each of these is appended to `complaints`.
    """
    found: dict[str, Benchmark] = {}
    what = "asv's benchmarks.json"
    try:
        entries = read_stored(path, what, partial(_versioned, 2)) if path.exists() else {}
    except UnreadableFile as error:
        complaints.append(f"{error} Without it no result can be read; `bench` writes it again.")
        return {}
    for name, entry in entries.items():
        if name == "version":
            continue
        try:
            found[name] = parsed(path, what, entry, partial(_benchmark, name))
        except UnreadableFile as error:
            complaints.append(f"{error} {name} is left out.")
    return found


def write_published(results: Results, source: Path, target: Path) -> None:
    """Make `target` a copy for asv's pages of what `read_results` read from `source`.

    asv stops at a file that is not its own, and takes the mean over files of one commit. So the
    copy leaves out faulty files, and what each file has of benchmarks that another session counts
    for.
    """
    counted = set(map(id, results.figures))
    for path in [source / BENCHMARKS, *source.glob("*/machine.json")]:
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for path, figures in results.files.items():
        shown = {figure.series.benchmark for figure in figures if id(figure) in counted}
        if path not in results.faulty and shown:
            content = decoded(path.read_bytes())
            rows = content["results"].items()
            content["results"] = {name: row for name, row in rows if name in shown}
            write_text(target / path.relative_to(source), json.dumps(content))


def dates_of(figures: Iterable[Figure]) -> dict[str, int]:
    """When the commits of figures were made, in milliseconds since 1970, by full hash."""
    return {figure.commit: figure.committed_ms for figure in figures}


def plain(param: str) -> str:
    """A parameter without the quotes of its `repr`."""
    try:
        return str(ast.literal_eval(param))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return param


def _best_sessions(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Of the figures that differ in their session alone the one that counts, by dates of commits.

    It is that of most samples, and of equal ones the newest.
    """
    best: dict[tuple[Series, str, EnvironmentFacts, str], Figure] = {}
    for figure in figures:
        key = (figure.series, figure.machine, figure.environment, figure.commit)
        other = best.setdefault(key, figure)
        if (len(figure.samples), figure.started_ms) > (len(other.samples), other.started_ms):
            best[key] = figure
    order = ("committed_ms", "commit", "series.benchmark")
    return tuple(sorted(best.values(), key=attrgetter(*order)))


def _versioned(wanted: int, content: dict[str, Any]) -> dict[str, Any]:
    """A file of asv, of which the version is right if it names one."""
    if "version" in content:
        require_schema(content, wanted, "version")
    return content


def _benchmark(name: str, entry: dict[str, Any]) -> Benchmark:
    return msgspec.convert({**entry, "name": name}, Benchmark)


def _machine(content: dict[str, Any]) -> tuple[str, dict[str, str]]:
    known = ("machine", "version")
    facts = {key: str(value) for key, value in _versioned(1, content).items() if key not in known}
    return text(content["machine"]), facts


class _ResultFile(msgspec.Struct):
    commit_hash: Annotated[str, Meta(pattern=r"\A([0-9a-f]{40}|[0-9a-f]{64})\Z")]
    date: Moment
    result_columns: list[Text]
    results: dict[str, Any]  # a row of columns by benchmark; each is read by itself
    params: dict[str, Any] | None = None
    python: Any = None
    env_name: Any = None

    @property
    def environment(self) -> EnvironmentFacts:
        """What the file says of the environment; the machine's name is known already."""
        own = {"python": self.python, "env_name": self.env_name}
        facts = {**(self.params or {}), **{key: own[key] for key in own if own[key] is not None}}
        return tuple(sorted((key, str(facts[key])) for key in facts if key != "machine"))


class _ResultRow(msgspec.Struct):
    """The columns of a row that are read. asv leaves out the last ones where they are empty, and
    one that is None as a whole is None for every combination of parameters."""

    result: list[Any] | None = None
    params: list[list[Text]] | None = None
    started_at: Moment | None = None
    samples: list[list[Any] | None] | None = None

    def by_parameters(self) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        """Parameters, and what is stored as their samples; nothing where the benchmark failed."""
        combinations = list(itertools.product(*(self.params or ())))
        nothing = [None] * len(combinations)
        columns = self.result or nothing, self.samples or nothing
        for texts, value, samples in zip(combinations, *columns, strict=True):
            is_skipped = isinstance(value, float) and math.isnan(value)
            if not is_skipped:
                # asv keeps the median alone where it was not asked for samples.
                alone = [] if value is None else [value]
                yield tuple(map(plain, texts)), alone if samples is None else samples


def _figures(
    path: Path,
    machine: str,
    benchmarks: Mapping[str, Benchmark],
    wrong: list[str],
    content: dict[str, Any],
) -> tuple[Figure, ...]:
    """All figures of one result file; sentences about faulty entries go to `wrong`."""
    file = msgspec.convert(_versioned(2, content), _ResultFile)
    environment = file.environment
    figures: list[Figure] = []
    for name, values in file.results.items():
        benchmark = benchmarks.get(name)
        try:
            columns = dict(zip(file.result_columns, msgspec.convert(values, list), strict=False))
            if benchmark is None or columns.get("version") != benchmark.version:
                continue
            row = msgspec.convert(columns, _ResultRow)
            of_row = [
                Figure(
                    series=Series(name, tuple(zip(benchmark.param_names, params, strict=True))),
                    unit=benchmark.unit,
                    machine=machine,
                    commit=file.commit_hash,
                    committed_ms=int(file.date),
                    samples=samples,
                    started_ms=int(row.started_at or 0),
                    environment=environment,
                    better=benchmark.better,
                )
                for params, stored in row.by_parameters()
                if (samples := _samples(path, benchmark, params, stored, wrong)) or not stored
            ]
        except (ValueError, msgspec.MsgspecError) as error:
            wrong.append(f"{path}: {name} is no row of asv ({error}). It is left out.")
        else:
            figures += of_row
    return tuple(figures)


def _samples(
    path: Path,
    benchmark: Benchmark,
    params: Sequence[str],
    stored: Sequence[Any],
    wrong: list[str],
) -> tuple[float, ...]:
    """What of the stored samples are figures."""
    figure_of = positive if benchmark.unit in TIMES else count
    kept: list[float] = []
    for sample in stored:
        try:
            kept.append(figure_of(sample))
        except ValueError as error:
            wrong.append(
                f"{path}: a sample of {benchmark.name}({', '.join(params)}) is wrong: {error}. It "
                f"is left out."
            )
    return tuple(kept)
