"""`history RANGE...`: measure commits, their rounds interleaved, and show them side by side."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from asv_bench.cli.options import (
    Anyway,
    CsvPath,
    Full,
    ListBenchmarks,
    MarkdownPath,
    Patterns,
    RecordPath,
    Yes,
)
from asv_bench.cli.report import build_all_pages
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.commit_sources import CommitSources
from asv_bench.git.commits import first_of_each_run
from asv_bench.git.repository import GitError, Repository
from asv_bench.git.working_tree import WorkingTree, working_tree
from asv_bench.history.asv_measuring import (
    expected_time,
    measure_with_progress,
    process_contradictions,
    record_of,
    write_record,
)
from asv_bench.history.asv_runs import AsvProject, require_project
from asv_bench.history.asv_selection import FULL, Selection
from asv_bench.history.estimate import agree_to
from asv_bench.history.sessions import SESSIONS, write_session
from asv_bench.history.table import history_tables
from asv_bench.output.record import REPOSITORY
from asv_bench.output.table_files import TableFiles
from asv_bench.process.checkout_lock import checkout_lock
from asv_bench.process.machine import machine_facts
from asv_bench.process.threads import measured_threads, threads_text

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


def history(
    commit_ranges: Annotated[
        list[str],
        typer.Argument(
            metavar="RANGE",
            help="As git understands them: HEAD~5..HEAD, v1..main; COMMIT^! for one commit.",
        ),
    ],
    full: Full = False,
    benchmark: Patterns = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", help="Processes per figure and commit (default: 3, with --full 12)."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="At most this many commits, evenly spaced.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="A commit measured in the same rounds; `changes` judges ratios to it, which the "
            "machine's drift between sessions does not move.",
        ),
    ] = None,
    anyway: Anyway = False,
    yes: Yes = False,
    json: RecordPath = None,
    markdown: MarkdownPath = None,
    csv: CsvPath = None,
    list_benchmarks: ListBenchmarks = False,
) -> None:
    """Measure ranges of commits and show how the figures moved."""
    selection = (FULL if full else SELECTION).changed(benchmark or (), rounds)
    require_project(REPOSITORY)
    in_ranges = [commits_of(commit_range, REPOSITORY) for commit_range in commit_ranges]
    found = list(dict.fromkeys(chain.from_iterable(in_ranges)))
    # The oldest of each run: the one that a change of its figures is put down to.
    runs = first_of_each_run(found[::-1], Repository(REPOSITORY))[::-1]
    commits = every_nth(found if anyway else runs, steps)
    pinned = None if reference is None else CommitSources(REPOSITORY).resolve(reference).hash
    if pinned is not None and pinned not in commits:
        commits = [*commits, pinned]
    files = TableFiles.beside_record(json, markdown=markdown, csv=csv)
    console = files.console
    if len(runs) < len(found) and not anyway:
        console.print(
            f"{len(found) - len(runs)} of {len(found)} commits are not measured, as their engine "
            f"and kernels are the same as those of the commit before; --anyway measures them",
        )
    project = AsvProject(REPOSITORY, REPOSITORY, REPOSITORY / "reports" / "asv")
    with checkout_lock(REPOSITORY):
        console.print(
            f"measuring {len(commits)} commits, {commits[0][:8]} to {commits[-1][:8]}, "
            f"in {selection.rounds} rounds, {threads_text(measured_threads())} a process"
            + (f", beside {pinned[:8]}" if pinned else ""),
        )
        facts = machine_facts()
        agree_to(expected_time(project, facts.name, commits, selection), console, yes=yes)
        record = record_of("history", project, commits, selection, facts)
        record.look_around(console)
        measured = measure_with_progress(project, commits, selection, console)
    with_figures = {figure.commit for figure in measured.figures}
    for commit in commits:
        if commit not in with_figures:
            console.print(f"{commit[:8]} gave no figure: it lacks what the benchmarks measure")
    files.show(*history_tables(measured.figures, REPOSITORY))
    record.warn(console, process_contradictions(measured.figures))
    path = write_record(record, project, measured, json)
    console.print(f"record: {path}")
    if pinned is not None:
        session = write_session(REPOSITORY / "reports" / SESSIONS, pinned, measured.figures)
        line = f"ratios to {pinned[:8]}: {session}"
        if session is None:
            line = f"{pinned[:8]}, the reference, gave no figure; nothing is divided by it"
        console.print(line)
    page = build_all_pages(project, console)
    console.print(f"every figure, with its samples: {page}")
    if measured.failed:
        raise MeasurementFailed(
            f"{len(measured.failed)} benchmarks failed at some commit: "
            f"{', '.join(measured.failed)}; their output is in {project.log}."
        )


def commits_of(commit_range: str, repository: Path) -> list[str]:
    """The full hashes of a range, newest first, first parents only.

    Raises
    ------
    Refused
        If `repository` is no repository, lacks part of its history, or has uncommitted changes
        that bear on the measurement; or if the range is unknown or empty.
    """
    refuse_unfit(working_tree(repository), repository)
    if commit_range.startswith("-"):
        raise Refused(f"{commit_range!r} is an option of git, not a range of commits.")
    try:
        commits = Repository(repository).first_parents(commit_range)[::-1]
    except GitError as error:
        raise Refused(
            f"git knows no commits called {commit_range!r}; give a range such as HEAD~5..HEAD. "
            f"Its own words: {error}"
        ) from None
    if not commits:
        raise Refused(
            f"the range {commit_range!r} holds no commits; a range runs from the older, which is "
            f"left out, to the newer."
        )
    return commits


def refuse_unfit(tree: WorkingTree, repository: Path) -> None:
    """Raise Refused unless the repository can give an honest history."""
    if tree.commit is None:
        raise Refused(
            f"{repository} is not a git repository with commits; history measures commits. "
            f"bench measures the working tree as it stands."
        )
    if Repository(repository).is_shallow():
        raise Refused(
            "this repository is shallow: part of its history is missing, and its oldest commit "
            "hides many. Fetch the rest with `git fetch --unshallow`."
        )
    changes = tree.measured_changes
    if changes:
        shown = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if changes[5:] else "")
        raise Refused(
            f"there are uncommitted changes in {shown}. history measures commits, and with today's "
            f"benchmarks: commit or stash them first. bench measures them as they stand."
        )


def every_nth(commits: list[str], steps: int | None) -> list[str]:
    """At most `steps` of `commits`, evenly spaced, the first and the last among them.

    Raises
    ------
    Refused
        If fewer than 2 are asked for.
    """
    if steps is None or len(commits) <= steps:
        return commits
    if steps < 2:
        raise Refused(f"--steps is {steps}; it must be at least 2, the ends of the range.")
    last = len(commits) - 1
    return [commits[round(step * last / (steps - 1))] for step in range(steps)]
