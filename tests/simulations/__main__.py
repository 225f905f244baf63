"""How often the commands err, on figures whose truth is known.

`python -m tests.simulations compare` applies the rule that compares real commits,
`bisect` the search among them, and `changes` the judgement of histories. Every draw follows from a
seed, so that a simulation repeats figure by figure, however many processes share it. Only a
bisection on several devices does not, whose pairs are given to whichever device is free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from asv_bench.bisect.finding import SearchPlan
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.output.progress import Progress
from asv_bench.output.record import Record
from asv_bench.output.table import Table
from asv_bench.output.table_files import TableFiles

from . import bisect as of_bisect
from . import changes as of_changes
from . import compare as of_compare
from .noise import SITUATIONS
from .replayed_noise import replayed

CaseT = TypeVar("CaseT")
PartT = TypeVar("PartT")
RowT = TypeVar("RowT")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulations")
    parser.add_argument("what", choices=("compare", "bisect", "changes"))
    parser.add_argument("--runs", type=int, help="of each case")
    parser.add_argument("--seed", type=int, default=0, help="of the first run of each case")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate")
    replay = "record of compare or calibrate, whose pairs of a commit with itself are drawn again"
    parser.add_argument("--replay", type=Path, action="append", default=[], help=replay)
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    asked = parser.parse_args(arguments)
    files = TableFiles(asked.markdown, record=asked.json)
    runs = asked.runs or (10_000 if asked.what == "compare" else 1000)
    simulated = partial(_simulated, files, asked.workers)

    def each(once: Callable[[CaseT, int], PartT]) -> Callable[[CaseT], list[partial[PartT]]]:
        """A part for each run, with a seed of its own."""
        return lambda case: [partial(once, case, asked.seed + run) for run in range(runs)]

    settings: dict[str, Any] = {"runs": runs, "seed": asked.seed}
    if asked.what == "compare":
        plan = ComparisonPlan()
        noises: dict[str, of_compare.NoiseSource] = dict(SITUATIONS)
        for path in asked.replay:
            noises.update(replayed(path, plan.cap))
        cases = of_compare.cases(noises, plan)
        parts = partial(of_compare.parts, runs=runs, plan=plan)
        tallies = simulated(cases, parts, of_compare.Tally.of)
        results = {
            "noises": {name: str(noise) for name, noise in noises.items()},
            "tallies": [{**asdict(tally), "broken": tally.broken(plan)} for tally in tallies],
        }
        settings = {"runs": runs, "plan": plan.to_json()}
        table = of_compare.tally_table(tallies, noises, plan)
        _write(files, "simulate", settings, results, table)
    elif asked.what == "bisect":
        rows = simulated(of_bisect.SCENARIOS, each(of_bisect.bisect_once), of_bisect.row_of)
        settings["plan"] = SearchPlan().to_json()
        table = of_bisect.bisect_table(rows)
        _write(files, "simulate_bisect", settings, {"rows": rows}, table)
    else:
        rates = simulated(of_changes.KINDS, each(of_changes.judge_once), of_changes.Rates.of)
        results = {"rates": [asdict(one) for one in rates]}
        table = of_changes.rates_table(rates, runs)
        _write(files, "simulate_changes", settings, results, table)


def _simulated(
    files: TableFiles,
    workers: int,
    cases: Sequence[CaseT],
    # What one process does at once, and what all of it comes to.
    parts: Callable[[CaseT], Sequence[Callable[[], PartT]]],
    row: Callable[[CaseT, Sequence[PartT]], RowT],
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
    main()
