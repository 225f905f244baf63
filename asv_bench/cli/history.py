"""`history RANGE...`: measure commits, their rounds interleaved, and build their page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from asv_bench.cli.report import build_all_pages
from asv_bench.errors import Refused
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import WORKING_TREE, short
from asv_bench.history.asv_results import write_session
from asv_bench.history.asv_selection import STANDARD
from asv_bench.history.histories import Histories
from asv_bench.history.history_session import measure_commits
from asv_bench.history.standing import stored_changes
from asv_bench.output.console import print_sentences
from asv_bench.output.figure_rows import figure_table
from asv_bench.output.record import WORKPLACE
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.session.options import (
    Anyway,
    EngineOptions,
    FigureProcesses,
    ListBenchmarks,
    Metrics,
    Minutes,
    Outputs,
    RequireQuiet,
    ResultsFolder,
    Resume,
    Yes,
    differing,
)
from asv_bench.session.time_limit import TimeLimit


def history(
    commit_ranges: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RANGE...]",
            help="HEAD~5..HEAD; COMMIT^! for one commit. Of labels: 1.0..2.0 (default: all).",
        ),
    ] = None,
    benchmark: Metrics = None,
    *,
    asked: EngineOptions,
    results: ResultsFolder = None,
    rounds: FigureProcesses = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help="At most this many commits, evenly spaced.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A commit measured in the same rounds: ratios to it cancel the machine's drift."
        ),
    ] = None,
    anyway: Anyway = False,
    minutes: Minutes = None,
    resume: Resume = None,
    require_quiet: RequireQuiet = False,
    hosts: FleetOptions,
    yes: Yes = False,
    files: Outputs,
    list_benchmarks: ListBenchmarks = False,
) -> None:
    """Measure ranges of commits and build the page of how the figures moved."""
    limit = TimeLimit.of(minutes)
    console = files.console
    choice = asked.choice(patterns=benchmark, hosts=hosts)
    declared = choice.declared("history")
    histories = Histories.of_subject(declared, results)
    histories.require_ready()
    if reference == WORKING_TREE:
        raise Refused("--reference names a commit, and . is none.")
    if not commit_ranges and not histories.labels:
        raise Refused("name the commits to measure by a range such as HEAD~5..HEAD.")
    selection = STANDARD.changed(benchmark or (), rounds)
    ranges = [declared.in_range(text) for text in commit_ranges or ()]
    named = [commit.hash for found in ranges for commit in found] or histories.labels
    found = list(dict.fromkeys(named))
    if not anyway:
        found = differing(declared, None, found, console)
    count = min(steps or len(found), len(found))
    # Evenly spaced, the ends among them.
    places = (round(step * (len(found) - 1) / max(1, count - 1)) for step in range(count))
    commits = [found[place] for place in places]
    pinned = ""
    if reference is not None:
        pinned = declared.resolve(reference).hash
        commits = commits if pinned in commits else [pinned, *commits]
    declared.near = commits[-1:]
    choice.choose(declared, benchmark or declared.stored)
    with checkout_lock(WORKPLACE):
        console.print(
            f"measuring {len(commits)} {'labels' if histories.labels else 'commits'} in "
            f"{selection.rounds} rounds" + (f", beside {short(pinned)}" if pinned else "")
        )
        measured = measure_commits(
            *(declared, histories, commits, selection.rounds, console),
            yes=yes,
            hosts=hosts,
            limit=limit,
            resume=resume,
            require_quiet=require_quiet,
        )
    given = {figure.commit for figure in measured.figures}
    newest = [commit for commit in commits if commit in given][-1]
    figures = [figure for figure in measured.figures if figure.commit == newest]
    files.show(figure_table(figures, f"{short(newest)}, the last of {len(commits)}"))
    begun = [one for one in stored_changes(histories, ())[2] if one.commit in given]
    print_sentences(console, [one.sentence for one in begun])
    measured.record.results["new_series"] = list(map(asdict, begun))
    console.print(f"record: {measured.record.write(files.json)}")
    if pinned:
        ratios = write_session(histories.sessions, pinned, measured.figures)
        console.print(f"ratios to {short(pinned)}: {ratios or 'none, it gave no figure'}")
    console.print(f"page: {build_all_pages(histories, console)}")
    measured.require_all()
