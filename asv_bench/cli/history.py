"""`history RANGE...`: measure commits, their rounds interleaved, and show them side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.cli.report import build_all_pages
from asv_bench.errors import Refused
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import WORKING_TREE, short
from asv_bench.history.asv_results import dates_of
from asv_bench.history.asv_selection import FULL, Selection
from asv_bench.history.histories import Histories
from asv_bench.history.history_session import HistorySession, history_tables
from asv_bench.history.sessions import write_session
from asv_bench.output.record import WORKPLACE
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    Anyway,
    AxisKind,
    FigureProcesses,
    Full,
    ListBenchmarks,
    Metrics,
    Outputs,
    ResultsFolder,
    SubjectPath,
    Yes,
    differing,
)
from asv_bench.subjects.choose import Choice

SELECTION = Selection(
    (
        r"^(scheduler|streaming)\.(Scheduler|Streaming)\.",
        r"^streaming\.StreamingLatency\..*'p(50|99)'",
        r"^decode\.Decode\..*, (8|64), 128\)",
        r"^kernels\.DecodeAttention\..*(gpt2-b64-c512|cpu-small)",
        r"^host\.AppendBookkeeping\..*'(batch|array)', 64\)",
    ),
    rounds=3,
)


@grouped
def history(
    commit_ranges: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RANGE...]",
            help="As git understands them: HEAD~5..HEAD, v1..main; COMMIT^! for one commit. Of "
            "labels: 1.0..2.0, or one label (default: all labels).",
        ),
    ] = None,
    full: Full = False,
    benchmark: Metrics = None,
    subject: SubjectPath = None,
    axis: AxisKind = None,
    results: ResultsFolder = None,
    rounds: FigureProcesses = None,
    steps: Annotated[
        int | None, typer.Option(help="At most this many commits, evenly spaced.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A commit measured in the same rounds; `changes` judges ratios to it, which the "
            "machine's drift between sessions does not move."
        ),
    ] = None,
    anyway: Anyway = False,
    *,
    hosts: FleetOptions,
    yes: Yes = False,
    outputs: Outputs,
    list_benchmarks: ListBenchmarks = False,
) -> None:
    """Measure ranges of commits and show how the figures moved."""
    files = outputs.files()
    console = files.console
    is_elsewhere = hosts.address is not None
    choice = Choice(file=subject, axis=axis, patterns=benchmark or (), is_elsewhere=is_elsewhere)
    declared = choice.declared("history")
    histories = Histories.of_subject(declared, results)
    if full and not declared.is_own:
        raise Refused("--full is of kvtrail's own benchmarks; say --rounds 12.")
    if reference == WORKING_TREE:
        raise Refused("--reference names a commit, and . is none.")
    if not commit_ranges and not histories.labels:
        raise Refused("name the commits to measure by a range such as HEAD~5..HEAD.")
    selection = (FULL if full else SELECTION).changed(benchmark or (), rounds)
    session = HistorySession(declared, histories, selection.rounds, hosts)
    found = list(histories.labels[::-1])
    if commit_ranges:
        in_ranges = [declared.in_range(text)[::-1] for text in commit_ranges]
        found = list(dict.fromkeys(commit.hash for one in in_ranges for commit in one))
    if not anyway:
        found = differing(declared, None, found[::-1], console)[::-1]
    commits = every_nth(found, steps)
    pinned = None if reference is None else declared.resolve(reference).hash
    if pinned is not None and pinned not in commits:
        commits = [*commits, pinned]
    declared.near = commits[:1]
    choice.choose(declared, benchmark or (selection.any_of() if declared.is_own else ()))
    with checkout_lock(WORKPLACE):
        console.print(
            f"measuring {len(commits)} {'labels' if histories.labels else 'commits'}, "
            f"{short(commits[0])} to {short(commits[-1])}, in {session.rounds} rounds"
            + (f", beside {short(pinned)}" if pinned else ""),
        )
        measured = session.measure(commits, console, yes=yes)
    with_figures = {figure.commit for figure in measured.figures}
    for commit in commits:
        if commit not in with_figures:
            reason = session.reasons.get(commit, "it lacks what the benchmarks measure")
            console.print(f"{short(commit)} gave no figure: {reason}")
    files.show(*history_tables(measured.figures, histories.in_order(dates_of(measured.figures))))
    console.print(f"record: {session.write_record(files.record)}")
    if pinned is not None:
        ratios = write_session(histories.sessions, pinned, measured.figures)
        line = f"ratios to {short(pinned)}: {ratios}"
        if ratios is None:
            line = f"{short(pinned)}, the reference, gave no figure; nothing is divided by it"
        console.print(line)
    console.print(f"page: {build_all_pages(histories, console)}")
    measured.require_all()


def every_nth(commits: list[str], steps: int | None) -> list[str]:
    """At most `steps` of `commits`, evenly spaced, the first and the last among them.

    Raises Refused if fewer than 2 are asked for.
    """
    if steps is None or len(commits) <= steps:
        return commits
    if steps < 2:
        raise Refused(f"--steps is {steps}; it must be at least 2, the ends of the range.")
    last = len(commits) - 1
    return [commits[round(step * last / (steps - 1))] for step in range(steps)]
