"""`bench`: measure the working tree as it stands, in many processes a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.git.repository import WORKING_TREE
from asv_bench.git.trees import working_tree
from asv_bench.history.asv_selection import FULL, QUICK, STANDARD, on_the_gpu
from asv_bench.history.histories import Histories
from asv_bench.history.history_session import MeasuringHistory
from asv_bench.output.figure_rows import figure_table
from asv_bench.output.record import REPOSITORY
from asv_bench.process.machine import has_cuda_gpu
from asv_bench.session import options
from asv_bench.session.exit_codes import ExitCode
from asv_bench.subjects.own_suite import OwnSuite
from asv_bench.words import counted, first_of


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few benchmarks, one process each: does it run?")
    ] = False,
    full: options.Full = False,
    benchmark: options.Metrics = None,
    rounds: options.FigureProcesses = None,
    require_gpu: options.RequireGpu = False,
    yes: options.Yes = False,
    *,
    files: options.Outputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Measure the working tree as it stands, store the result and build the page."""
    if quick and full:
        raise Refused("--quick and --full exclude each other; give one of them, or neither.")
    if require_gpu and not has_cuda_gpu():
        raise MeasurementFailed(
            "--require-gpu was given, but there is no GPU here that torch can use; "
            "nothing was measured."
        )
    selection = (QUICK if quick else FULL if full else STANDARD).changed(benchmark or (), rounds)
    suite = OwnSuite(REPOSITORY)
    histories = Histories.of_subject(suite)
    histories.require_ready()
    commit, results, said = tree_to_measure(suite, histories)
    suite.choose(benchmark or selection.any_of(), None)
    rounds = selection.rounds
    session = _Bench("bench", suite, histories, [commit], rounds, said, yes=yes, results=results)
    how = options.RunningOptions()
    how.require_gpu = require_gpu
    session.with_options(files, how).answer()


class _Bench(MeasuringHistory):
    """The working tree as it stands."""

    def print_answer(self) -> None:
        super().print_answer()
        series = [tuple(value for _, value in one.series.params) for one in self.figures]
        if self._how.require_gpu and not any(on_the_gpu(repr(values)) for values in series):
            raise MeasurementFailed("--require-gpu was given, but no benchmark ran on the GPU.")
        [commit], facts = self._commits, self._record.machine
        device = facts.gpu or f"{facts.cpu}, {facts.cores} cores"
        threads = counted(self._record.threads, "thread")
        title = f"{commit[:8]} on {device} ({threads}; torch {facts.torch})"
        self._files.show(figure_table(self.figures, title))
        kept = self._results.relative_to(REPOSITORY) / facts.name
        self._console.print(f"result: {kept}/{commit[:8]}-*.json")

    def end(self, code: ExitCode) -> None:
        # Not at the top: every command would wait for jinja2.
        from asv_bench.pages.site import build_page

        self._console.print(f"page:   {build_page(self._histories, self._console)}")
        super().end(code)


def tree_to_measure(suite: OwnSuite, histories: Histories) -> tuple[str, Path, str]:
    """The commit to measure, where its results go, and a line that says what it is.

    Figures of a tree that differs from HEAD are never filed under HEAD: they go to
    `reports/asv-worktree`, under the hash of a snapshot.
    """
    tree = working_tree(histories.repository)
    changes = tree.measured_changes
    if tree.commit is not None and not changes:
        return tree.commit, histories.results, f"measuring HEAD, {tree.commit[:8]}"
    commit = suite.resolve(WORKING_TREE).hash
    why = "there is no git history to compare it with"
    if tree.commit is not None:
        why = f"it differs from HEAD ({tree.commit[:8]}) in {first_of(changes, 3)}"
    line = f"measuring the working tree as it stands; {why} (filed as {commit[:8]} under "
    return commit, histories.folder / "asv-worktree", f"{line}reports/asv-worktree)"
