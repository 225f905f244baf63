"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asv_bench.asv_results import Figure, Series, read_results
from asv_bench.commands.options import Devices, RecordPath
from asv_bench.console import add_figure_columns, make_console, print_table
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.machine import machine_facts
from asv_bench.pages.commits import commits_in_order
from asv_bench.record import REPOSITORY, Record
from asv_bench.sessions import SESSIONS, read_ratios
from asv_bench.verdicts.bench_setup import set_up, termination_as_interrupt
from asv_bench.verdicts.change_points import Change, Point, changes_in, points_of
from asv_bench.verdicts.commit_range import described
from asv_bench.verdicts.comparison_tables import percentage
from asv_bench.verdicts.confirmation import (
    Confirmation,
    Standing,
    Suspicion,
    confirm,
    entry_named,
)
from asv_bench.verdicts.exit_codes import ExitCode
from asv_bench.verdicts.triage import Triaged

STYLES = {
    Standing.REGRESSION: "bold red",
    Standing.IMPROVEMENT: "bold green",
    Standing.REFUTED: "dim",
    Standing.UNRESOLVED: "yellow",
    Standing.NOT_COMPARED: "dim",
}
HELP = """Find where the stored histories moved, and compare the commits around each change.

Without --confirm, or where results are of another machine, a change is an unconfirmed candidate.
Exit code 3: a regression was confirmed; 0: none was; 1: a failure; 2: refused.
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
    devices: Devices = None,
    json: RecordPath = None,
) -> None:
    """Find changes in stored results, confirm them, and build the triage page.

    Raises
    ------
    MeasurementFailed
        If nothing is stored.
    Refused
        If the machine that was asked for has no results.
    typer.Exit
        With 3 where a regression was confirmed.
    """
    console = make_console()
    found = stored_changes(REPOSITORY, benchmark or (), machine)
    record = Record("changes", {"benchmark": list(benchmark or ()), "machine": machine})
    here = machine_facts().name
    ours = sorted(
        (change for change, _ in found if change.machine == here),
        key=lambda change: -abs(change.effect),
    )[:most]
    confirmed = confirmations(ours, devices, console) if confirm_them and ours else {}
    triaged = [
        Triaged(
            change, tuple(points), described(change.commit.hash, REPOSITORY), confirmed.get(change)
        )
        for change, points in found
    ]
    # Not at the top: every command would wait for matplotlib.
    from asv_bench.pages.triage_page import build_triage_page

    page = build_triage_page(triaged, REPOSITORY / "reports" / "pages" / "changes.html")
    if triaged:
        print_table(console, change_table(triaged))
    else:
        console.print("no series moved by 1 % or more")
    regressions = [entry for entry in triaged if entry.standing == str(Standing.REGRESSION)]
    for entry in regressions:
        if not entry.change.is_placed and entry.confirmation:
            found_by = bisection_of(entry.change, entry.confirmation)
            console.print(found_by, highlight=False, soft_wrap=True)
    code = ExitCode.REGRESSION if regressions else ExitCode.GOOD
    record.results = {
        "exit_code": int(code),
        "changes": [entry.to_json() for entry in triaged],
    }
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
    console.print(f"record: {record.write(json)}", highlight=False, soft_wrap=True)
    if code:
        raise typer.Exit(code)


def stored_changes(
    root: Path, patterns: Sequence[str], machine: str | None
) -> list[tuple[Change, list[Point]]]:
    """Every change in the stored results, with the points of its series; largest first."""
    results = read_results(root / "reports" / "asv")
    if not results.figures:
        raise MeasurementFailed("no history is stored; `history` measures a range of commits.")
    if machine is not None and machine not in results.machines:
        raise Refused(
            f"there are no results of a machine called {machine!r}; there are those of "
            f"{', '.join(sorted(results.machines))}."
        )
    found: list[tuple[Change, list[Point]]] = []
    for name in [machine] if machine else sorted(results.machines):
        figures = [figure for figure in results.figures if figure.machine == name]
        commits = commits_in_order(figures, root)
        ratios = read_ratios(root / "reports" / SESSIONS, name)
        by_series: dict[Series, list[Figure]] = {}
        for figure in figures:
            if not patterns or any(text in figure.series.benchmark for text in patterns):
                by_series.setdefault(figure.series, []).append(figure)
        for members in by_series.values():
            points = points_of(members, commits, ratios)
            found += [(change, points) for change in changes_in(points)]
    return sorted(found, key=lambda entry: -abs(entry[0].effect))


def confirmations(
    found: Sequence[Change], devices: str | None, console: Console
) -> dict[Change, Confirmation]:
    """Compare the commits around each change; those of benchmarks that are gone are left out."""
    names = "|".join(sorted({re.escape(change.series.benchmark) for change in found}))
    setup = set_up(REPOSITORY, [rf"^({names})(\(|$)"], devices)
    suspicions: dict[Change, Suspicion] = {}
    for change in found:
        try:
            entry = entry_named(
                setup.entries, change.series.benchmark, [value for _, value in change.series.params]
            )
        except Refused as refusal:
            console.print(str(refusal), highlight=False, soft_wrap=True)
            continue
        suspicions[change] = Suspicion(
            entry.name, change.since.hash, change.until.hash, change.effect
        )
    pairs = 0

    def on_pair(*_: object) -> None:
        nonlocal pairs
        pairs += 1
        status.update(f"comparing the commits around {len(suspicions)} changes: {pairs} pairs")

    with termination_as_interrupt(), console.status("comparing") as status:
        done = confirm(list(suspicions.values()), setup.pairs_of, None, on_pair)
    return dict(zip(suspicions, done, strict=True))


def bisection_of(change: Change, confirmation: Confirmation) -> str:
    """How to find the commit of a change that may lie in several places."""
    # Quotes around texts would end the shell's own; a dot finds them too.
    pattern = re.escape(confirmation.comparison.benchmark).replace("'", ".")
    return (
        f"which commit it was: nox -s bisect -- {change.since.short} {change.until.short} "
        f"--benchmark '^{pattern}$'"
    )


def change_table(triaged: Sequence[Triaged]) -> Table:
    """A row for each change."""
    table = Table(
        title="changes in the stored histories",
        title_justify="left",
        caption="A candidate is a change of level in stored figures; only a comparison of the "
        "commits around it makes it a regression or an improvement.",
    )
    table.add_column("benchmark and commit", overflow="fold")
    add_figure_columns(table, "machine", "change", "interval", "compared", "standing")
    for entry in triaged:
        change = entry.change
        name = Text(entry.title)
        name.append(f"\n{change.commit.short} {change.commit.subject}", style="dim")
        if not change.is_placed:
            name.append(f"\nor another after {change.since.short}, up to {change.until.short}")
        low, high = (percentage(bound, 1, signed=True) for bound in change.interval)
        effect = entry.confirmation.comparison.effect if entry.confirmation else None
        style = STYLES[entry.confirmation.standing] if entry.confirmation else "yellow"
        table.add_row(
            name,
            change.machine,
            percentage(change.effect, 1, signed=True),
            f"{low} to {high}",
            "-" if effect is None else percentage(effect, 2, signed=True),
            Text(entry.standing, style),
        )
    return table
