"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from asv_bench.cli.exit_codes import ExitCode
from asv_bench.cli.options import Anyway, CsvPath, Devices, MarkdownPath, RecordPath
from asv_bench.cli.report import branch_to_show
from asv_bench.compare.bench_setup import (
    BenchSetup,
    devices_named,
    set_up,
    termination_as_interrupt,
)
from asv_bench.compare.catalog import Entry
from asv_bench.compare.comparison import Progress
from asv_bench.compare.confirmation import (
    Confirmation,
    Standing,
    Suspicion,
    confirm,
    entry_named,
)
from asv_bench.compare.verdict import Comparison, Verdict
from asv_bench.errors import MeasurementFailed, NothingSelected, Refused
from asv_bench.git.commit_sources import WORKING_TREE, CommitSources
from asv_bench.git.commits import commits_on_line
from asv_bench.git.repository import GitError, Repository
from asv_bench.history.asv_results import (
    EnvironmentFacts,
    Figure,
    Results,
    Series,
    dates_of,
    differing,
    read_results,
)
from asv_bench.history.change_points import Change, Point, changes_in, points_of
from asv_bench.history.sessions import SESSIONS, read_ratios
from asv_bench.history.triage import Triaged
from asv_bench.output.console import print_sentences
from asv_bench.output.progress import Progress as Bar
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.output.table import Cell, Column, Row, Table, interval, percent
from asv_bench.output.table_files import TableFiles
from asv_bench.packages import require_packages
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import MachineFacts, machine_facts
from asv_bench.process.samples import Pair
from asv_bench.process.threads import threads_text

STYLES = {
    Standing.REGRESSION: "bold red",
    Standing.IMPROVEMENT: "bold green",
    Standing.REFUTED: "dim",
    Standing.UNRESOLVED: "yellow",
    Standing.NOT_COMPARED: "dim",
}
INTERRUPTED = "Interrupted: some changes were not compared to the end, or not at all."
HELP = """Find where the stored histories moved, and compare the commits around each change.

A series is of one machine in one environment, along one line of first parents. Without --confirm,
or where results are of another machine, Python, torch or Triton than those here, a change is an
unconfirmed candidate.
Exit code 3: a regression was confirmed; 0: none was; 1: a failure, of a comparison too; 2: refused;
130: interrupted, with what was measured written down.
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("changes", help=HELP)(changes)


def changes(
    benchmark: Annotated[
        list[str] | None,
        typer.Option("--benchmark", "-b", help="Text found in a benchmark's name (default: all)."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Only this machine's results.")
    ] = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Compare at most so many, the largest first.")
    ] = 12,
    anyway: Anyway = False,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="Judge the commits on this one's line of first parents (default: main, or HEAD "
            "where there is no such branch).",
        ),
    ] = None,
    devices: Devices = None,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
) -> None:
    """Find changes in stored results, confirm them, and build the triage page.

    Raises
    ------
    MeasurementFailed
        If nothing is stored.
    Refused
        If the machine that was asked for has no results, or the branch does not exist.
    typer.Exit
        With 3 where a regression was confirmed, 1 where a comparison failed and none was, 130
        after an interruption.
    """
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    console = files.console
    page_path = REPOSITORY / "reports" / "pages" / "changes.html"
    require_places(json, page_path)
    require_packages("jinja2", "matplotlib", "ruptures", "scipy")
    tip = _tip(REPOSITORY, branch)
    stored = stored_changes(REPOSITORY, benchmark or (), machine, tip)
    found = stored.found
    settings = {"benchmark": list(benchmark or ()), "machine": machine, "branch": tip}
    record = Record("changes", settings, notes=list(stored.notes))
    print_sentences(console, stored.notes)
    here = machine_facts()
    ours = sorted(
        (change for change, _ in found if is_of(here, change)),
        key=lambda change: -abs(change.effect),
    )[:most]
    confirming = Confirming(record, console, anyway=anyway)
    if confirm_them and ours:
        with checkout_lock(REPOSITORY):
            confirming.run(ours, devices)
    triaged = [
        Triaged(
            change,
            tuple(points),
            confirming.confirmed.get(change),
        )
        for change, points in found
    ]
    if triaged or markdown or csv:
        files.show(change_table(triaged))
    else:
        console.print("no series moved by 1 % or more")
    for reason in dict.fromkeys(
        entry.confirmation.comparison.reason for entry in triaged if entry.confirmation
    ):
        if reason:
            console.print(reason)
    regressions = [entry for entry in triaged if entry.standing == str(Standing.REGRESSION)]
    for entry in regressions:
        if not entry.change.is_placed and entry.confirmation:
            found_by = bisection_of(entry.change, entry.confirmation)
            console.print(found_by)
    code = ExitCode.INTERRUPTED if confirming.is_interrupted else exit_code_of(triaged)
    record.results = {
        "exit_code": int(code),
        "outcome": code.name.lower(),
        "interrupted": confirming.is_interrupted,
        "changes": [entry.to_json() for entry in triaged],
    }
    path = record.write(json)
    # Not at the top: every command would wait for matplotlib.
    from asv_bench.pages.triage_page import build_triage_page

    page = build_triage_page(triaged, page_path)
    console.print(f"page: {page}")
    console.print(f"record: {path}")
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class StoredChanges:
    """Every change with the points of its series, largest first; and what to know of them."""

    found: list[tuple[Change, list[Point]]]
    notes: list[str]


def stored_changes(
    root: Path, patterns: Sequence[str], machine: str | None, tip: str = "HEAD"
) -> StoredChanges:
    """The changes in the stored results, each environment of a machine by itself.

    Parameters
    ----------
    root
        The checkout.
    patterns
        Texts, one of which is in a benchmark's name; none: all benchmarks.
    machine
        Whose results; None: every machine's.
    tip
        The last commit of the line of first parents along which series are laid.

    Raises
    ------
    MeasurementFailed
        If nothing is stored.
    Refused
        If the machine has no results.
    """
    results = read_results(root / "reports" / "asv")
    notes = list(results.complaints)
    if not results.figures:
        raise MeasurementFailed(
            " ".join(["no history is stored; `history` measures a range of commits.", *notes])
        )
    if machine is not None and machine not in results.machines:
        raise Refused(
            f"there are no results of a machine called {machine!r}; there are those of "
            f"{', '.join(sorted(results.machines))}."
        )
    found: list[tuple[Change, list[Point]]] = []
    for name in [machine] if machine else sorted(results.machines):
        figures = [figure for figure in results.figures if figure.machine == name]
        commits, beside = commits_on_line(dates_of(figures), Repository(root), tip)
        if beside:
            notes.append(
                f"{name}: {beside} of the commits measured are not on {tip}'s line of first "
                f"parents and are in no series; --branch names another line."
            )
        notes += _environments(name, results)
        ratios = read_ratios(root / "reports" / SESSIONS, name, notes)
        by_series: dict[tuple[Series, EnvironmentFacts], list[Figure]] = {}
        for figure in figures:
            if not patterns or any(text in figure.series.benchmark for text in patterns):
                by_series.setdefault((figure.series, figure.environment), []).append(figure)
        for members in by_series.values():
            points = points_of(members, commits, ratios)
            found += [(change, points) for change in changes_in(points)]
    return StoredChanges(sorted(found, key=lambda entry: -abs(entry[0].effect)), notes)


def is_of(here: MachineFacts, change: Change) -> bool:
    """Whether comparing here can confirm a change: its figures are of this machine and software."""
    software = {
        "python": ".".join(here.python.split(".")[:2]),
        "torch": here.torch or "none",
        "triton": here.triton or "none",
    }
    stored = dict(change.environment)
    same = all(stored.get(name, version) == version for name, version in software.items())
    return change.machine == here.name and same


def _environments(machine: str, results: Results) -> list[str]:
    """What a machine's environments differ in, where it has several."""
    environments = results.environments_of(machine)
    if len(environments) < 2:
        return []
    listed = "; ".join(differing(one, environments) for one in environments)
    return [f"{machine} has results of {len(environments)} environments, judged apart: {listed}."]


def _tip(root: Path, branch: str | None) -> str:
    """The last commit of the line to judge, as git names it."""
    if branch is None:
        return branch_to_show(root)
    if branch == WORKING_TREE:
        raise Refused("--branch names a line of commits, and . is none; give a branch or HEAD.")
    CommitSources(root).resolve(branch)
    return branch


class Confirming:
    """The comparisons of the commits around changes, and what came of them until now.

    Attributes
    ----------
    confirmed
        Of the changes that were compared; one that an interruption cut short is unresolved.
    is_interrupted
        Whether comparisons are missing.
    """

    def __init__(self, record: Record, console: Console, *, anyway: bool) -> None:
        self._anyway = anyway
        self._record = record
        self._console = console
        self.confirmed: dict[Change, Confirmation] = {}
        self.is_interrupted = False

    def run(self, found: Sequence[Change], devices: str | None) -> None:
        """Compare the commits around each; changes of benchmarks that are gone are left out."""
        names = "|".join(sorted({re.escape(change.series.benchmark) for change in found}))
        setup: BenchSetup | None = None
        with contextlib.suppress(NothingSelected):
            setup = set_up(REPOSITORY, [rf"^({names})(\(|$)"], devices)
        suspicions = self._suspicions(found, setup.entries if setup else ())
        if setup is None or not suspicions:
            return
        same = {} if self._anyway else _same(suspicions.values(), CommitSources(REPOSITORY))
        open_ones = [one for one in suspicions.values() if one not in same]
        if open_ones:
            self._record.look_around(self._console, devices_named(devices))
        what = (
            f"comparing the commits around {len(open_ones)} changes, "
            f"{threads_text(self._record.threads)} a process"
        )
        with termination_as_interrupt(), Bar(self._console, what, unit="pairs") as bar:

            def on_pair(_: Progress, measured: Mapping[str, Pair]) -> None:
                self._record.samples.extend(pair.to_json() for pair in measured.values())
                bar.show(len(self._record.samples))

            confirmed = confirm(open_ones, setup.pairs_of, on_pair)
        self.is_interrupted = confirmed.is_interrupted
        if self.is_interrupted:
            self._record.notes.append(INTERRUPTED)
            self._console.print(INTERRUPTED)
        standing = same | {one.suspicion: one for one in confirmed.confirmations}
        for change, suspicion in suspicions.items():
            if suspicion in standing:
                self.confirmed[change] = standing[suspicion]

    def _suspicions(
        self, found: Sequence[Change], entries: Sequence[Entry]
    ) -> dict[Change, Suspicion]:
        suspicions: dict[Change, Suspicion] = {}
        for change in found:
            values = [value for _, value in change.series.params]
            try:
                entry = entry_named(entries, change.series.benchmark, values)
            except Refused as refusal:
                self._console.print(str(refusal))
                continue
            suspicions[change] = Suspicion(
                entry.name, change.since.hash, change.until.hash, change.effect
            )
        return suspicions


def _same(suspicions: Iterable[Suspicion], sources: CommitSources) -> dict[Suspicion, Confirmation]:
    """Those whose commits have the same engine and kernels: no commit moved them."""
    found: dict[Suspicion, Confirmation] = {}
    for one in suspicions:
        # A commit that the repository lacks is compared, and said to be lacking then.
        with contextlib.suppress(GitError):
            if sources.are_same(one.before, one.after):
                answer = Comparison.of_same(one.benchmark, one.before, one.after)
                found[one] = Confirmation(one, answer)
    return found


def exit_code_of(triaged: Sequence[Triaged]) -> ExitCode:
    """A confirmed regression outweighs a comparison that failed."""
    confirmed = [entry.confirmation for entry in triaged if entry.confirmation]
    if any(entry.standing is Standing.REGRESSION for entry in confirmed):
        return ExitCode.REGRESSION
    if any(entry.comparison.verdict is Verdict.FAILED for entry in confirmed):
        return ExitCode.FAILED
    return ExitCode.GOOD


def bisection_of(change: Change, confirmation: Confirmation) -> str:
    """How to find the commit of a change that may lie in several places."""
    # Quotes around texts would end the shell's own; a dot finds them too.
    pattern = re.escape(confirmation.comparison.benchmark).replace("'", ".")
    return (
        f"which commit it was: nox -s bisect -- {change.since.short} {change.until.short} "
        f"--benchmark '^{pattern}$'"
    )


COLUMNS = (
    Column("benchmark", "benchmark and commit", kind="name"),
    Column("commit", "commit", kind="data"),
    Column("after", "after", kind="data"),
    Column("up_to", "up to", kind="data"),
    Column("machine", "machine"),
    Column("change", "change", show=percent(1, signed=True)),
    Column("interval", "interval", show=interval(1), parts=("low", "high")),
    Column("compared", "compared", show=percent(2, signed=True)),
    Column("standing", "standing"),
)


def change_table(triaged: Sequence[Triaged]) -> Table:
    """A row for each change; of a machine with changes in several environments, with which."""
    environments: dict[str, list[EnvironmentFacts]] = {}
    for entry in triaged:
        environments.setdefault(entry.change.machine, []).append(entry.change.environment)
    return Table(
        COLUMNS,
        [_row(entry, environments[entry.change.machine]) for entry in triaged],
        title="changes in the stored histories",
        caption="A candidate is a change of level in stored figures; only a comparison of the "
        "commits around it makes it a regression or an improvement.",
    )


def _row(entry: Triaged, environments: Sequence[EnvironmentFacts]) -> Row:
    change, confirmation = entry.change, entry.confirmation
    note = f"{change.commit.short} {change.commit.subject}"
    if not change.is_placed:
        note += f"\nor another after {change.since.short}, up to {change.until.short}"
    apart = differing(change.environment, environments)
    if apart:
        note += f"\nwith {apart}"
    return (
        Cell(entry.title, note=note),
        change.commit.hash,
        change.since.hash,
        change.until.hash,
        change.machine,
        change.effect,
        change.interval,
        confirmation.comparison.effect if confirmation else None,
        Cell(entry.standing, STYLES[confirmation.standing] if confirmation else "yellow"),
    )
