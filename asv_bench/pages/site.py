"""The page of all stored results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from asv_bench.git.repository import Commit
from asv_bench.history.asv_results import (
    EnvironmentFacts,
    Figure,
    Results,
    Series,
    dates_of,
    read_results,
)
from asv_bench.history.histories import Histories
from asv_bench.output.destinations import write_text
from asv_bench.output.figure_rows import METRICS, Row, columns_of, figure_rows, spaced
from asv_bench.output.table import Column
from asv_bench.pages.plots import plot_history

TEMPLATES = Path(__file__).parent / "templates"

FIGURE_NAMES = {"tpot": "TPOT", "ttft": "TTFT", "itl": "ITL"}

_FACTS = {
    "gpu": "GPU",
    "driver": "driver",
    "cpu": "CPU",
    "num_cpu": "cores",
    "ram": "memory",
    "os": "system",
    "python": "Python",
    "torch": "torch",
    "triton": "Triton",
}


@dataclass(frozen=True, slots=True)
class ResultTable:
    """The figures of one commit on one machine."""

    heading: str
    caption: str
    columns: list[Column]
    groups: list[tuple[str, list[Row]]]


@dataclass(frozen=True, slots=True)
class MachineSection:
    """Everything the page shows of one machine in one environment.

    `off_line` counts the commits that are in no plot: those beside the line of first parents.
    """

    name: str
    anchor: str
    title: str
    facts: list[tuple[str, str]]
    tables: list[ResultTable]
    histories: list[tuple[str, list[tuple[str, str]]]]
    commits: list[Commit]
    off_line: int


def build_page(histories: Histories, complaints: list[str] | None = None) -> Path:
    """Write the page of everything that is stored of a subject and return its path.

    The page is one file: no scripts, no fonts and no pictures from elsewhere. What of the stored
    files is left out is said on it, and in `complaints`.
    """
    committed = histories.read()
    worktree = histories.named(read_results(histories.of_worktree))
    left_out = [*committed.complaints, *worktree.complaints]
    if complaints is not None:
        complaints += left_out
    machines = sorted({**committed.machines, **worktree.machines})
    sections = [
        _section(name, number, environment, committed, worktree, histories)
        for name in machines
        for number, environment in enumerate(
            dict.fromkeys([*committed.environments_of(name), *worktree.environments_of(name)])
        )
    ]
    page = (
        page_templates()
        .get_template("index.html.j2")
        .render(
            subject=histories.subject,
            is_own=histories.is_own,
            sections=[section for section in sections if section.tables],
            left_out=[sentence.replace(f"{histories.configured}/", "") for sentence in left_out],
            moments=_moments,
            built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            has_asv_pages=(histories.folder / "html" / "index.html").is_file(),
        )
    )
    return write_text(histories.pages / "index.html", page)


def page_templates() -> Environment:
    """The templates of all pages; what they show is escaped."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _section(
    name: str,
    number: int,
    environment: EnvironmentFacts,
    committed: Results,
    worktree: Results,
    histories: Histories,
) -> MachineSection:
    facts = dict(environment) or committed.machines.get(name) or worktree.machines[name]
    figures, drafts = (
        [
            figure
            for figure in results.figures
            if (figure.machine, figure.environment) == (name, environment)
        ]
        for results in (committed, worktree)
    )
    dates = dates_of(figures)
    commits = histories.in_order(dates)
    line, off_line = histories.on_line(dates)
    tables = []
    if drafts:
        newest = max(drafts, key=lambda figure: figure.started_ms)
        tables.append(
            _table(
                [figure for figure in drafts if figure.commit == newest.commit],
                "Working tree",
                f"Uncommitted, measured {_moment(newest.started_ms)}",
            )
        )
    if commits:
        latest = commits[-1]
        of_latest = [figure for figure in figures if figure.commit == latest.hash]
        subject = f" {latest.subject}" if latest.subject else ""
        tables.append(_table(of_latest, "Last commit measured", f"Commit {latest.short}{subject}"))
    known = [
        (label, facts[key]) for key, label in _FACTS.items() if facts.get(key, "none") != "none"
    ]
    title = facts["gpu"] if facts.get("gpu", "none") != "none" else facts.get("cpu", name)
    return MachineSection(
        name,
        f"{name}-{number + 1}" if number else name,
        title,
        known,
        tables,
        _histories(figures, line),
        commits,
        off_line,
    )


def _table(figures: Sequence[Figure], heading: str, caption: str) -> ResultTable:
    rows = figure_rows(figures)
    grouped = [(group, list(members)) for group, members in groupby(rows, lambda row: row.group)]
    return ResultTable(heading, caption, columns_of(rows), grouped)


def _histories(
    figures: Iterable[Figure], commits: Sequence[Commit]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles and plots of every series that has several of the commits, by benchmark."""
    shown = {commit.hash for commit in commits}
    by_series: dict[Series, list[Figure]] = {}
    for figure in figures:
        if not figure.failed and figure.commit in shown:
            by_series.setdefault(figure.series, []).append(figure)
    by_subject: dict[str, list[tuple[str, str]]] = {}
    for series, members in sorted(by_series.items(), key=lambda entry: _place(entry[0])):
        if len(members) > 1:
            figure_name = FIGURE_NAMES.get(series.figure) or series.figure.replace("_", " ")
            title = f"{figure_name}, {series.label}" if series.label else figure_name
            if members[0].is_metric:
                group, title = METRICS, series.benchmark
            else:
                group = spaced(series.subject.rpartition(".")[2])
            if members[0].better == "higher":
                title += ", higher is better"
            plot = title, plot_history(title, members, commits)
            by_subject.setdefault(group, []).append(plot)
    return list(by_subject.items())


def _place(series: Series) -> tuple[int, str, tuple[tuple[int, str], ...]]:
    modules = ("scheduler", "streaming", "decode", "kernels", "host")
    module = series.benchmark.split(".")[0]
    place = modules.index(module) if module in modules else len(modules)
    # Numbers in their own order: batch 8 before batch 64.
    values = tuple((int(value) if value.isdecimal() else 0, value) for _, value in series.params)
    return place, series.benchmark, values


def _moments(row: Row) -> str:
    first, last = map(_moment, row.measured_ms)
    return first if first == last else f"{first} to {last}"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
