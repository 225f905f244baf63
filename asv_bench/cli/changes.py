"""`changes`: where the stored histories moved, and which of it stands when it is compared."""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.cli.report import branch_to_show
from asv_bench.errors import Refused, require_packages
from asv_bench.fleet.fleet import FleetOptions
from asv_bench.git.repository import WORKING_TREE, resolve_revision
from asv_bench.history.confirming import Confirming
from asv_bench.history.histories import Histories
from asv_bench.history.standing import ANSWERS
from asv_bench.history.stored_changes import stored_changes
from asv_bench.output.console import print_sentences
from asv_bench.output.record import require_places
from asv_bench.session.grouped import grouped
from asv_bench.session.options import (
    MOST,
    MeasuringOptions,
    Outputs,
    ResultsFolder,
    SubjectOptions,
)


@grouped
def changes(
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "--benchmark",
            "-b",
            help="Text found in the name of a metric or benchmark (default: all).",
        ),
    ] = None,
    *,
    asked: SubjectOptions,
    results: ResultsFolder = None,
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    confirm_them: Annotated[
        bool,
        typer.Option("--confirm/--no-confirm", help="Compare the commits around each change."),
    ] = True,
    most: Annotated[
        int, typer.Option(min=1, max=MOST, help="Compare at most so many, the largest first.")
    ] = 12,
    branch: Annotated[
        str | None,
        typer.Option(
            help="Judge the commits on this one's line of first parents (default: main, or HEAD "
            "where there is no such branch)."
        ),
    ] = None,
    how: MeasuringOptions,
    hosts: FleetOptions,
    outputs: Outputs,
) -> None:
    """Find where the stored histories moved, and compare the commits around each change.

    A series is of one machine in one environment, along one line of first parents. Without
    --confirm, or where results are of another machine, Python, torch or Triton than those here, a
    change is not confirmed yet. What acknowledged.toml beside the results names is not compared.
    Exit code 3: a regression was confirmed; 0: none was; 1: a failure, of a comparison too; 2:
    refused; 130: interrupted, with what was measured written down; the same command goes on where
    it stopped.
    """
    files = outputs.files()
    choice = asked.choice(how=how, hosts=hosts)
    declared = choice.declared("changes")
    histories = Histories.of_subject(declared, results)
    kept = histories.folder / ANSWERS / "answers.json"
    require_places(files.record, histories.pages / "index.html", kept)
    require_packages("jinja2", "scipy")
    tip = _tip(histories, branch)
    stored = stored_changes(histories, benchmark or (), machine, tip)
    print_sentences(files.console, stored.notes)
    settings = {"benchmark": list(benchmark or ()), "machine": machine, "branch": tip}
    most = most if confirm_them else 0
    Confirming(histories, stored, most, choice, settings, declared, files, how, hosts).answer()


def _tip(histories: Histories, branch: str | None) -> str:
    """The last commit of the line to judge, as git names it; "" where labels are judged."""
    root = histories.repository
    if histories.labels:
        if branch is not None:
            raise Refused("--branch names a line of commits, and labels are judged; leave it out.")
        return ""
    if branch is None:
        return branch_to_show(root)
    if branch == WORKING_TREE:
        raise Refused("--branch names a line of commits, and . is none; give a branch or HEAD.")
    resolve_revision(branch, root)
    return branch
