"""Reading asv's result files, and which figures were measured in one session.

A results directory holds `benchmarks.json`, and for each machine a folder with `machine.json` and
one file per commit and environment. A result file stores, per benchmark, a row of columns; see
asv's developer documentation ("benchmark suite layout and file formats").

A machine drifts between sessions. The ratio to a reference commit measured in the same session is
free of that. asv has no place for it, so such a session leaves a file.
"""

from __future__ import annotations

import ast
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from asv_bench.output.record import write_json
from asv_bench.output.stored_json import (
    Moment,
    Positive,
    Text,
    UnreadableFile,
    count,
    positive,
    read_stored,
    require_schema,
    text,
)

BENCHMARKS, MACHINE = "benchmarks.json", "machine.json"
TIMES = ("seconds", "floors")
"""Units whose figures cannot be zero; what the others count can."""

Better: TypeAlias = Literal["", "lower", "higher"]
"""Which of two figures of a subject's metric is better; of what asv measures (""), the lower is."""
EnvironmentFacts: TypeAlias = tuple[tuple[str, str], ...]
"""What a figure was measured with beside the commit, as names and values in the order of the names:
Python, torch, Triton, the driver, the host's hardware, asv's environment."""

APART_MS = 15 * 60 * 1000
"""A longer time in which no benchmark started lies between two sessions."""
Kind = TypeVar("Kind", bound=msgspec.Struct)


class Benchmark(msgspec.Struct, frozen=True):
    """What asv knows about one `track_` method, or about a metric of a subject."""

    name: str
    unit: str
    param_names: tuple[Text, ...]
    version: Text
    better: Better = ""
    params: tuple[tuple[Text, ...], ...] = ()


class Series(NamedTuple):
    """What one figure is filed under, whatever the commit: benchmark and parameters."""

    benchmark: str
    params: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The benchmark with its parameters, as asv prints it but for the quotes of texts."""
        values = ", ".join(value for _, value in self.params)
        return f"{self.benchmark}({values})" if values else self.benchmark

    @property
    def label(self) -> str:
        """The parameters' values, readable."""
        return ", ".join(
            value if name in ("model", "shape", "kind", "way", "percentile") else f"{name} {value}"
            for name, value in self.params
        )


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
    better: Better = ""  # of a subject's metric

    @property
    def failed(self) -> bool:
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

    machines: Mapping[str, Mapping[str, str]]  # facts by the machine's name
    figures: tuple[Figure, ...]
    """One for each series, commit, machine and environment. Where several sessions measured it,
    that of the session with the most samples, and of equal ones the newest."""
    complaints: tuple[str, ...] = ()  # a sentence for each file of which something was left out


def differing(environment: EnvironmentFacts, others: Collection[EnvironmentFacts]) -> str:
    """The facts of an environment that are not the same in all of the others, readable."""
    facts = dict(one for one in environment if any(one not in other for other in others))
    # asv's name for an environment repeats what is in it.
    told = {name: value for name, value in facts.items() if name != "env_name"} or facts
    return ", ".join(f"{name} {value}" for name, value in told.items())


def read_results(directory: Path) -> Results:
    """Read a results directory; one that does not exist holds nothing.

    Figures of benchmarks that are no longer there, or whose version has changed since, are left
    out, as are skipped parameters. What cannot be right is left out with a complaint.
    """
    complaints: list[str] = []
    benchmarks = read_benchmarks(directory / BENCHMARKS, complaints)
    machines: dict[str, dict[str, str]] = {}
    found: list[Figure] = []
    for folder in sorted(path for path in directory.glob("*") if path.is_dir()):
        paths = sorted(path for path in folder.glob("*.json") if path.name != MACHINE)
        if not paths and not (folder / MACHINE).is_file():
            continue
        try:
            machine, facts = read_stored(folder / MACHINE, "asv's machine.json", _machine)
        except UnreadableFile as error:
            machine, facts = folder.name, {}
            complaints.append(f"{error} The machine goes by its folder's name, {machine}.")
        machines[machine] = facts
        for path in paths:
            wrong: list[str] = []
            try:
                file = read_stored(path, "a result file of asv", _ResultFile)
            except UnreadableFile as error:
                complaints.append(f"{error} It is left out.")
                continue
            found += _figures(file, machine, benchmarks, wrong)
            if wrong:
                complaints.append(f"{path}: {wrong[0]}. It is left out ({len(wrong)} such in all).")
    # Of figures that differ in their session alone the one that counts.
    best: dict[tuple[Any, ...], Figure] = {}
    for figure in found:
        key = (figure.series, figure.machine, figure.environment, figure.commit)
        other = best.setdefault(key, figure)
        if (len(figure.samples), figure.started_ms) > (len(other.samples), other.started_ms):
            best[key] = figure
    order = attrgetter("committed_ms", "commit", "series.benchmark")
    return Results(machines, tuple(sorted(best.values(), key=order)), tuple(complaints))


def read_benchmarks(path: Path, complaints: list[str]) -> dict[str, Benchmark]:
    """What asv knows about each benchmark; nothing, and a complaint, where the file is another."""
    if not path.exists():
        return {}
    try:
        return read_stored(path, "asv's benchmarks.json", _benchmarks)
    except UnreadableFile as error:
        complaints.append(f"{error} Without it no result can be read; `bench` writes it again.")
        return {}


def _benchmarks(content: dict[str, Any]) -> dict[str, Benchmark]:
    require_schema({"version": 2, **content}, 2, "version")
    entries = {name: entry for name, entry in content.items() if name != "version"}
    named = {name: {**entry, "name": name} for name, entry in entries.items()}
    return msgspec.convert(named, dict[str, Benchmark])


def _machine(content: dict[str, Any]) -> tuple[str, dict[str, str]]:
    require_schema({"version": 1, **content}, 1, "version")
    known = ("machine", "version")
    facts = {key: str(value) for key, value in content.items() if key not in known}
    return text(content["machine"]), facts


class _ResultFile(msgspec.Struct):
    commit_hash: Annotated[str, Meta(pattern=r"\A([0-9a-f]{40}|[0-9a-f]{64})\Z")]
    date: Moment
    result_columns: list[Text]
    results: dict[str, Any]  # a row of columns by benchmark; each is read by itself
    params: dict[str, Any] | None = None
    python: Any = None
    env_name: Any = None
    version: Literal[2] = 2

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


def _figures(
    file: _ResultFile, machine: str, benchmarks: Mapping[str, Benchmark], wrong: list[str]
) -> list[Figure]:
    """All figures of one result file; what of its entries is wrong goes to `wrong`."""
    environment = file.environment
    found: list[Figure] = []
    for name, values in file.results.items():
        benchmark = benchmarks.get(name)
        try:
            columns = dict(zip(file.result_columns, msgspec.convert(values, list), strict=False))
            if benchmark is None or columns.get("version") != benchmark.version:
                continue
            row = msgspec.convert(columns, _ResultRow)
            found += [
                Figure(
                    series=series,
                    unit=benchmark.unit,
                    machine=machine,
                    commit=file.commit_hash,
                    committed_ms=int(file.date),
                    samples=samples,
                    started_ms=int(row.started_at or 0),
                    environment=environment,
                    better=benchmark.better,
                )
                for series, samples in _by_parameters(benchmark, row, wrong)
            ]
        except (ValueError, msgspec.MsgspecError) as error:
            wrong.append(f"{name} is no row of asv: {error}")
    return found


def _by_parameters(
    benchmark: Benchmark, row: _ResultRow, wrong: list[str]
) -> Iterator[tuple[Series, tuple[float, ...]]]:
    """Samples of each combination of parameters; none where the benchmark failed."""
    combinations = list(itertools.product(*(row.params or ())))
    nothing = [None] * len(combinations)
    columns = row.result or nothing, row.samples or nothing
    figure_of = positive if benchmark.unit in TIMES else count
    for texts, value, samples in zip(combinations, *columns, strict=True):
        if isinstance(value, float) and math.isnan(value):
            continue  # it was skipped
        values = zip(benchmark.param_names, map(_plain, texts), strict=True)
        series = Series(benchmark.name, tuple(values))
        # asv keeps the median alone where it was not asked for samples.
        alone = [] if value is None else [value]
        stored = alone if samples is None else samples
        kept: list[float] = []
        for sample in stored:
            try:
                kept.append(figure_of(sample))
            except ValueError as error:
                wrong.append(f"a sample of {series.name} is wrong: {error}")
        if kept or not stored:
            yield series, tuple(kept)


def _plain(param: str) -> str:
    """A parameter without the quotes of its `repr`."""
    try:
        return str(ast.literal_eval(param))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return param


Ratios: TypeAlias = dict[tuple[Series, str, int], tuple[str, float]]
"""By series, commit and time of measurement in milliseconds: the reference, and its figure."""


def sessions_of(figures: Iterable[Figure]) -> list[int]:
    """When the sessions began in which a machine measured some figures, in milliseconds since 1970.

    They are ascending, and of figures of whatever series. asv stores when the last round of a
    figure started, and the last rounds of a session follow one another.
    """
    starts = sorted({figure.started_ms for figure in figures})
    later = [second for first, second in itertools.pairwise(starts) if second - first > APART_MS]
    return [*starts[:1], *later]


class _Related(msgspec.Struct):
    benchmark: Text
    params: tuple[tuple[Text, str], ...]
    commit: Text
    started_ms: Moment
    value: float
    reference_value: Positive
    ratio: float


class _Session(msgspec.Struct):
    """One file: what was measured beside `reference`, a full hash or a label."""

    schema: Literal[1]
    reference: Text
    figures: list[_Related]


def write_session(folder: Path, reference: str, figures: Sequence[Figure]) -> Path | None:
    """Keep what one session measured on one machine beside its reference; returns the file.

    `reference` is the full hash of a commit, or a label, measured in the same, interleaved rounds.
    None where it gave no figure to divide by.
    """
    given = {figure: figure.median for figure in figures if figure.samples and figure.median > 0}
    divisors = {one.series: value for one, value in given.items() if one.commit == reference}
    rows = [
        _Related(*one.series, one.commit, one.started_ms, value, divisor, value / divisor)
        for one, value in given.items()
        if (divisor := divisors.get(one.series))
    ]
    if not rows:
        return None
    begun = min(figure.started_ms for figure in figures)
    path = folder / figures[0].machine / f"{begun}.json"
    write_json(path, msgspec.to_builtins(_Session(1, reference, rows)), indent=1)
    return path


def read_ratios(folder: Path, machine: str, complaints: list[str]) -> Ratios:
    """What the sessions of one machine measured beside references; see `read_each`."""
    ratios: Ratios = {}
    for session in read_each(folder / machine, "a session of history", _Session, complaints):
        for row in session.figures:
            key = Series(row.benchmark, row.params), row.commit, int(row.started_ms)
            ratios[key] = session.reference, row.reference_value
    return ratios


def read_each(folder: Path, what: str, kind: type[Kind], complaints: list[str]) -> Iterator[Kind]:
    """The JSON files of a folder as structs, by name; what is none is left out with a complaint."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield read_stored(path, what, kind)
        except UnreadableFile as error:
            complaints.append(f"{error} It is left out.")
