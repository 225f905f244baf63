"""How often the commands err, on figures whose truth is known.

`python -m tests.simulations compare` applies the rule that compares real commits, `rounds` the same
to `fixed` and `swap`, `builds` where builds of a commit differ, `judge` that of files that others
left, `bisect` the search among commits, and `changes` the judgement of histories. `labelled --data
FOLDER` judges that and other detectors on series of others, whose steps people have set down; otava
and ruptures are in the environment of `nox -s detectors` only. Every draw follows from a seed, so
that a simulation repeats figure by figure, however many processes share it. Only a bisection on
several devices does not, whose pairs are given to whichever device is free.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from asv_bench.bisect.finding import SearchPlan
from asv_bench.compare.plan import ComparisonPlan
from asv_bench.output.console import Progress
from asv_bench.output.record import Record
from asv_bench.session.options import Outputs

from . import bisect as of_bisect
from . import builds as of_builds
from . import changes as of_changes
from . import compare as of_compare
from . import judge as of_judge
from . import labelled as of_labelled
from . import rounds as of_rounds
from .noise import SITUATIONS, replayed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulations")
    parser.add_argument(
        "what",
        choices=("compare", "rounds", "builds", "judge", "bisect", "changes", "labelled"),
    )
    parser.add_argument("--runs", type=int, help="of each case")
    parser.add_argument(
        "--only", default="", help="regular expression: noises, or ranges, of this name"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first run of each case")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate")
    replay = "record of compare or calibrate, whose pairs of a commit with itself are drawn again"
    parser.add_argument("--replay", type=Path, action="append", default=[], help=replay)
    parser.add_argument("--data", type=Path, help="folder of labelled series")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    asked = parser.parse_args(arguments)
    files = Outputs(asked.json, asked.markdown)
    if asked.what == "labelled" and asked.data is None:
        parser.error("labelled needs --data FOLDER, whose form tests/simulations/labelled.py says")
    most = {"compare": 10_000, "rounds": 10_000, "builds": 10_000, "labelled": 20}
    most["judge"] = 100_000
    runs = asked.runs or most.get(asked.what, 1000)
    seeds = range(asked.seed, asked.seed + runs)
    settings: dict[str, Any] = {"runs": runs, "seed": asked.seed}
    results: dict[str, Any]
    if asked.what == "compare":
        plan = ComparisonPlan()
        noises: dict[str, of_compare.NoiseSource] = dict(SITUATIONS)
        for path in asked.replay:
            noises.update(replayed(path, plan.cap))
        cases = [one for one in of_compare.cases(noises, plan) if re.search(asked.only, one.name)]
        parts = [of_compare.parts(case, runs, plan) for case in cases]
        tallies = list(map(of_compare.Tally.of, cases, _done(files, parts, asked.workers)))
        results = {
            "noises": {name: str(noise) for name, noise in noises.items()},
            "tallies": [{**asdict(tally), "broken": tally.broken(plan)} for tally in tallies],
        }
        settings = {"runs": runs, "plan": plan.to_json()}
        command, table = "simulate", of_compare.tally_table(tallies, noises, plan)
    elif asked.what == "rounds":
        plan = ComparisonPlan()
        rounds = [one for one in of_rounds.cases() if re.search(asked.only, one.noise)]
        parts = [of_rounds.parts(one, runs, plan) for one in rounds]
        done = _done(files, parts, asked.workers)
        rows = [of_rounds.row_of(*one, plan) for one in zip(rounds, done, strict=True)]
        settings = {"runs": runs, "plan": plan.to_json()}
        results = {"rows": rows}
        command, table = "simulate_rounds", of_rounds.rounds_table(rows)
    elif asked.what in ("builds", "judge"):
        of: Any = of_builds if asked.what == "builds" else of_judge
        parts = [of.parts(case, runs) for case in of.CASES]
        rows = list(map(of.row_of, of.CASES, _done(files, parts, asked.workers)))
        results = {"rows": rows}
        command, table = f"simulate_{asked.what}", of.table_of(rows, runs)
    elif asked.what == "bisect":
        ranges = [one for one in of_bisect.SCENARIOS if re.search(asked.only, one.name)]
        parts = [[partial(of_bisect.bisect_once, one, seed) for seed in seeds] for one in ranges]
        rows = list(map(of_bisect.row_of, ranges, _done(files, parts, asked.workers)))
        settings["plan"] = SearchPlan().to_json()
        results = {"rows": rows}
        command, table = "simulate_bisect", of_bisect.bisect_table(rows)
    elif asked.what == "labelled":
        every = of_labelled.read_labelled(asked.data)
        detectors = of_labelled.DETECTORS
        there = {name: one for name, one in detectors.items() if of_labelled.is_installed(name)}
        scores = [of_labelled.score(name, one, every, runs) for name, one in there.items()]
        missing = sorted(detectors.keys() - there.keys())
        for name in missing:
            absent = f"{name} is not installed; `nox -s detectors` has it."
            files.console.print(absent, highlight=False, soft_wrap=True)
        results = {
            "scores": [asdict(one) for one in scores],
            "not_installed": missing,
            "versions": of_labelled.versions(),
        }
        command, table = "score_changes", of_labelled.score_table(scores, every, runs)
    else:
        kinds = of_changes.KINDS
        parts = [[partial(of_changes.judge_once, kind, seed) for seed in seeds] for kind in kinds]
        rates = list(map(of_changes.Rates.of, kinds, _done(files, parts, asked.workers)))
        results = {"rates": [asdict(one) for one in rates]}
        command, table = "simulate_changes", of_changes.rates_table(rates, runs)
    record = Record(command, settings, results=results)
    files.show(table)
    files.console.print(f"record: {record.write(files.json)}", highlight=False, soft_wrap=True)


def _done(
    files: Outputs, parts: Sequence[Sequence[Callable[[], Any]]], workers: int
) -> list[list[Any]]:
    """What the parts of each case come to."""
    done: list[list[Any]] = []
    with (
        Progress(files.console, "simulating", len(parts), "cases") as progress,
        ProcessPoolExecutor(workers) as pool,
    ):
        # All at once, so that no process waits for the last part of a case.
        futures = [[pool.submit(part) for part in of_case] for of_case in parts]
        for of_case in futures:
            done.append([one.result() for one in of_case])
            progress.advance()
    return done


if __name__ == "__main__":
    main()
