"""`history RANGE...`: measure commits and build their page; and `changes`, where figures moved."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from asv_bench.cli.report import branch_to_show, build_all_pages
from asv_bench.errors import Refused, require_packages
from asv_bench.git.repository import WORKING_TREE, short
from asv_bench.history.asv_results import write_session
from asv_bench.history.asv_selection import STANDARD
from asv_bench.history.histories import Histories
from asv_bench.history.history_session import MeasuringHistory
from asv_bench.history.standing import ANSWERS, Confirming, stored_changes
from asv_bench.output.console import print_sentences
from asv_bench.output.figure_rows import figure_table
from asv_bench.output.record import require_places
from asv_bench.session import options
from asv_bench.session.exit_codes import ExitCode


def history(
    commit_ranges: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RANGE...]",
            help="HEAD~5..HEAD; COMMIT^! for one commit. Of labels: 1.0..2.0 (default: all).",
        ),
    ] = None,
    benchmark: options.Metrics = None,
    *,
    asked: options.EngineOptions,
    results: options.ResultsFolder = None,
    rounds: options.FigureProcesses = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help="At most this many commits, evenly spaced.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A commit measured in the same rounds: ratios to it cancel the machine's drift."
        ),
    ] = None,
    anyway: options.Anyway = False,
    how: options.RunningOptions,
    yes: options.Yes = False,
    files: options.Outputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Measure ranges of commits and build the page of how the figures moved."""
    console = files.console
    choice = asked.choice(patterns=benchmark, how=how)
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
        found = options.differing(declared, None, found, console)
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
    said = (
        f"measuring {len(commits)} {'labels' if histories.labels else 'commits'} in "
        f"{selection.rounds} rounds" + (f", beside {short(pinned)}" if pinned else "")
    )
    session = _History("history", declared, histories, commits, selection.rounds, said, yes=yes)
    session.pinned = pinned
    session.with_options(files, how).answer()


class _History(MeasuringHistory):
    """Ranges of commits, or labels."""

    pinned = ""  # the one to which ratios are kept, if any

    def print_answer(self) -> None:
        super().print_answer()
        given = {figure.commit for figure in self.figures}
        newest = [commit for commit in self._commits if commit in given][-1]
        figures = [figure for figure in self.figures if figure.commit == newest]
        title = f"{short(newest)}, the last of {len(self._commits)}"
        self._files.show(figure_table(figures, title))
        begun = [one for one in stored_changes(self._histories, ())[2] if one.commit in given]
        print_sentences(self._console, [one.sentence for one in begun])
        self._record.results["new_series"] = list(map(asdict, begun))

    def end(self, code: ExitCode) -> None:
        if self.pinned:
            ratios = write_session(self._histories.sessions, self.pinned, self.figures)
            said = f"ratios to {short(self.pinned)}: {ratios or 'none, it gave no figure'}"
            self._console.print(said)
        self._console.print(f"page: {build_all_pages(self._histories, self._console)}")
        super().end(code)


def changes(
    benchmark: options.Metrics = None,
    *,
    asked: options.EngineOptions,
    results: options.ResultsFolder = None,
    confirm_them: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Compare the commits around each change.")
    ] = True,
    how: options.MeasuringOptions,
    files: options.Outputs,
) -> None:
    """Find where the stored histories moved, and compare the commits around each change.

    A series is of one machine in one environment, along one line of first parents. Without
    --confirm, or where results are of another machine, Python, torch or Triton than those here, a
    change is not confirmed yet. What acknowledged.toml beside the results names is not compared.
    Exit code 3: a regression was confirmed; 4: a control moved; 0: neither. The same command goes
    on after Ctrl-C.
    """
    choice = asked.choice(patterns=benchmark, how=how)
    declared = choice.declared("changes")
    histories = Histories.of_subject(declared, results)
    kept = histories.folder / ANSWERS / "answers.json"
    require_places(files.json, histories.pages / "index.html", kept)
    require_packages("jinja2", "scipy")
    tip = "" if histories.labels else branch_to_show(histories.repository)
    confirming = Confirming(
        histories, benchmark or (), tip, choice, declared, compares=confirm_them
    )
    confirming.with_options(files, how).answer()
