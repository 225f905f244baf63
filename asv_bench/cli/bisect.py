"""`bisect GOOD BAD`: which commit made a benchmark slower, or faster."""

from __future__ import annotations

from typing import Annotated

import typer

from asv_bench.bisect.finding import THOROUGH, Direction, SearchPlan
from asv_bench.errors import Refused
from asv_bench.git.repository import WORKING_TREE
from asv_bench.measure.samples import judged
from asv_bench.session import options
from asv_bench.session.bisecting import Bisecting, CommitRange, SearchingFiles
from asv_bench.session.result_bisecting import BisectingResults


def bisect(
    good: Annotated[
        str,
        typer.Argument(
            help="A commit without the change: a hash, branch, tag or HEAD~9; or a label."
        ),
    ],
    bad: Annotated[
        str | None,
        typer.Argument(help="A later one, with the change; --files needs the one commit only."),
    ] = None,
    command: options.MeasuredCommand = None,
    benchmark: options.ComparedMetrics = None,
    *,
    asked: options.EngineOptions,
    check: Annotated[
        str | None,
        typer.Option(
            help="Find the first commit with another result of this [check] of kvtrail.toml, or "
            "with a worse number.",
        ),
    ] = None,
    improvement: Annotated[
        bool, typer.Option("--improvement", help="Find what made it faster instead.")
    ] = False,
    certain: Annotated[
        float,
        typer.Option(
            min=0.51,
            max=0.999,
            callback=options.a_number,
            help="Probability at which a commit is confirmed.",
        ),
    ] = SearchPlan().certain,
    most_pairs: Annotated[
        int, typer.Option(min=1, max=options.MOST, help="Pairs of the search at most.")
    ] = SearchPlan().most_pairs,
    inside: Annotated[
        bool,
        typer.Option(
            "--inside",
            help="Search also where the ends do not differ, for a change that is taken back.",
        ),
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Go on to every step, also when those confirmed explain what the ends differ by, "
            "and measure each commit, for changes that cancel each other.",
        ),
    ] = False,
    by_files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="Search the files that differ between the two, instead of the commits; of one "
            "commit, those that it changes.",
        ),
    ] = False,
    how: options.MeasuringOptions,
    files: options.AnswerOutputs,
    list_benchmarks: options.ListBenchmarks = False,
) -> None:
    """Find the commits after GOOD, up to BAD, that made a benchmark slower.

    --metric has to find exactly one metric. The two ends are compared first; without a regression
    between them nothing is searched, unless with --inside or --all. The largest step comes first,
    and the search ends when what it confirmed explains the difference of the ends, but for a tenth;
    --all goes on, and measures each commit, as changes may cancel each other. A slope is told from
    a step. Commits that hold the same files in what is measured as the one before are stepped over.
    The search runs along first parents: a merge counts as one commit, and the answer has the
    command that goes into it.
    Along an axis of labels the first label is found. bisect COMMIT --files finds the files of a
    commit that did it. Exit code 3: the commit was found and confirmed; 0: no regression, or the
    same at both ends; 4: inconclusive; 5: the benchmark does not exist at one of the ends; 1: a
    failure; 2: refused; 130: interrupted, and the same command goes on where it stopped.
    """
    choice = asked.choice(command, benchmark, how, near=(good, bad))
    chosen = choice.subject("bisect")
    checked = None if check is None else chosen.choose_check(check)
    if (count := len(asked_for := judged(chosen.metrics))) > 1:
        shown = ", ".join(metric.name for metric in asked_for[:6])
        said = " ".join(["--metric", *map(repr, benchmark or ())])
        raise Refused(f"{said} finds {count} metrics, and one is bisected at a time: {shown}.")
    plan = SearchPlan(
        comparison=THOROUGH.with_margin(chosen.metrics[0].margin or how.margin / 100),
        certain=certain,
        most_pairs=most_pairs,
        is_inside=inside or every,
        is_all=every,
    )
    if WORKING_TREE in (good, bad):
        raise Refused("bisect searches commits, and . is none: commit what is to be searched.")
    direction = Direction.IMPROVEMENT if improvement else Direction.REGRESSION
    if bad is None:
        if not by_files:
            raise Refused("bisect needs two commits or labels: kvtrail bisect GOOD BAD.")
        good, bad = options.parent_of(chosen, good), good
    ends = options.ends_of(chosen, (good, bad), files.console)
    if by_files:
        SearchingFiles(chosen, ends, direction, plan).with_options(files, how).answer()
        return
    good_hash, bad_hash = (commit.hash for _, commit in ends)
    commits = chosen.axis.between(good_hash, bad_hash)
    if merges := sum(len(commit.parents) > 1 for commit in commits):
        files.console.print(
            f"{merges} of {len(commits)} commits are merges: only first parents are searched, and "
            f"a merge counts as one commit with all that it brought in"
        )
    is_same = not (how.anyway or plan.is_inside) and chosen.are_same(good_hash, bad_hash)
    if not (how.anyway or is_same):
        hashes = [commit.hash for commit in commits]
        found = options.differing(chosen, good_hash, hashes, files.console)
        is_same, commits = not found, [one for one in commits if one.hash in found] or commits
    among = CommitRange((good, bad), good_hash, commits)
    if checked is not None and checked.check == "equal":
        BisectingResults(chosen, among, checked).with_options(files, how).answer()
        return
    words = choice.words()
    bisecting = Bisecting(chosen, among, direction, plan, options=words, is_same=is_same)
    bisecting.with_options(files, how).answer()
