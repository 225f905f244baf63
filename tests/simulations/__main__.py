"""How often the commands err, on figures whose truth is known.

`python -m tests.simulations compare` applies the rule that compares real commits,
`bisect` the search among them, and `changes` the judgement of histories. Every draw follows from a
seed, so that a simulation repeats figure by figure, however many processes share it. Only a
bisection on several devices does not, whose pairs are given to whichever device is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from asv_bench.bisect.finding import SearchPlan
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Table
from asv_bench.output.table_files import TableFiles
from asv_bench.session.grouped import grouped
from asv_bench.session.options import Outputs

from . import bisect as of_bisect
from . import changes as of_changes
from . import compare as of_compare
from .noise import SITUATIONS
from .replayed_noise import replayed

CaseT = TypeVar("CaseT")
PartT = TypeVar("PartT")
RowT = TypeVar("RowT")

Runs: TypeAlias = Annotated[int, typer.Option(min=1, help="Of each case.")]
Seed: TypeAlias = Annotated[int, typer.Option(help="Of the first run of each case.")]
Workers: TypeAlias = Annotated[int, typer.Option(min=1, help="Processes that simulate.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
@grouped
def compare(
    runs: Runs = 10_000,
    workers: Workers = 1,
    replay: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Record of compare or calibrate: draw from its pairs of a commit with itself, "
            "too; may be given several times.",
        ),
    ] = None,
    *,
    outputs: Outputs,
) -> None:
    """Simulate every effect under every noise, and several benchmarks at once."""
    files, plan = outputs.files(), ComparisonPlan()
    noises: dict[str, of_compare.NoiseSource] = dict(SITUATIONS)
    for path in replay or []:
        noises.update(replayed(path, plan.cap))
    tallies = _simulated(
        files,
        of_compare.cases(noises, plan),
        lambda case: of_compare.parts(case, runs, plan),
        of_compare.Tally.of,
        workers,
    )
    results = {
        "noises": {name: str(noise) for name, noise in noises.items()},
        "tallies": [{**asdict(tally), "broken": tally.broken(plan)} for tally in tallies],
    }
    table = of_compare.tally_table(tallies, noises, plan)
    _write(files, "simulate", {"runs": runs, "plan": plan.to_json()}, results, table)


@app.command()
@grouped
def bisect(runs: Runs = 1000, seed: Seed = 0, workers: Workers = 1, *, outputs: Outputs) -> None:
    """Bisect simulated ranges of 64 commits, and count how often the answer was right."""
    files = outputs.files()
    rows = _simulated(
        files,
        of_bisect.SCENARIOS,
        _each(of_bisect.bisect_once, runs, seed),
        of_bisect.row_of,
        workers,
    )
    settings = {"runs": runs, "seed": seed, "plan": SearchPlan().to_json()}
    table = of_bisect.bisect_table(rows)
    _write(files, "simulate_bisect", settings, {"rows": rows}, table)


@app.command()
@grouped
def changes(runs: Runs = 1000, seed: Seed = 0, workers: Workers = 1, *, outputs: Outputs) -> None:
    """Judge simulated histories, flat ones and ones with a step."""
    files = outputs.files()
    rates = _simulated(
        files,
        of_changes.KINDS,
        _each(of_changes.judge_once, runs, seed),
        of_changes.Rates.of,
        workers,
    )
    table = of_changes.rates_table(rates, runs)
    results = {"rates": [asdict(one) for one in rates]}
    _write(files, "simulate_changes", {"runs": runs, "seed": seed}, results, table)


def _each(
    once: Callable[[CaseT, int], PartT], runs: int, seed: int
) -> Callable[[CaseT], Sequence[Callable[[], PartT]]]:
    """A part for each run, with a seed of its own."""
    return lambda case: [partial(once, case, seed + run) for run in range(runs)]


def _simulated(
    files: TableFiles,
    cases: Sequence[CaseT],
    # What one process does at once, and what all of it comes to.
    parts: Callable[[CaseT], Sequence[Callable[[], PartT]]],
    row: Callable[[CaseT, Sequence[PartT]], RowT],
    workers: int,
) -> list[RowT]:
    """What each case comes to."""
    rows: list[RowT] = []
    with (
        Progress(files.console, "simulating", len(cases), "cases", is_apart=False) as progress,
        ProcessPoolExecutor(workers) as pool,
    ):
        # All at once, so that no process waits for the last part of a case.
        futures = [[pool.submit(part) for part in parts(case)] for case in cases]
        for case, ones in zip(cases, futures, strict=True):
            rows.append(row(case, [one.result() for one in ones]))
            progress.advance()
    return rows


def _write(
    files: TableFiles, command: str, settings: dict[str, Any], results: dict[str, Any], table: Table
) -> None:
    record = Record(command, settings, results=results)
    files.show(table)
    files.console.print(f"record: {record.write(files.record)}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
