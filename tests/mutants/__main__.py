"""``python -m tests.mutants``: plant every mutant and demand that a test notices it.

Without a GPU it runs what Triton's interpreter and the compiler can judge; on a machine with one,
the mutants of the kernels that only a Hopper GPU runs. Exits 0 when all are noticed, 1 when one
survives, 2 when one cannot be planted or tested.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from asv_bench.output.console import make_console, print_table
from asv_bench.output.table import Column, Table
from asv_bench.process.machine import has_cuda_gpu

from .catalog import MUTANTS
from .runner import Outcome, run_mutants, unmutated_failure

ROOT = Path(__file__).resolve().parents[2]
MOST_JOBS = 2
COLUMNS = tuple(
    Column(name, name, kind="text")
    for name in ("mutant", "result", "why it must be noticed", "run")
)
_FOR_GPUS = "they are of kernels that only a Hopper GPU runs, and there is none here"
_FOR_OTHERS = "they run through the interpreter and the compiler, which needs no GPU: --no-gpu"


def main(arguments: Sequence[str] | None = None, repository: Path = ROOT) -> int:
    """Run the command; see the module's docstring for its exit codes."""
    options = _parser().parse_args(arguments)
    console = make_console()
    chosen = [one for one in MUTANTS if options.only in f"{one.file} {one.original}"]
    has_gpu = has_cuda_gpu() if options.gpu is None else options.gpu
    runnable = [one for one in chosen if (one.check == "gpu") == has_gpu]
    if len(runnable) < len(chosen):
        others = _FOR_OTHERS if has_gpu else _FOR_GPUS
        console.print(
            f"{len(chosen) - len(runnable)} of {len(chosen)} mutants are not run: {others}",
            soft_wrap=True,
        )
    if not runnable:
        console.print(f"no mutant that can be run here matches {options.only!r}", markup=False)
        return 2
    started = time.perf_counter()
    with console.status("the tests on the tree as it is"):
        failure = unmutated_failure(repository, runnable)
    if failure is not None:
        console.print(failure, markup=False, highlight=False)
        console.print("the tests fail without any mutant, so they would notice all of them")
        return 2
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("mutants", total=len(runnable))

        def on_outcome(outcome: Outcome) -> None:
            progress.advance(task)
            if options.verbose:
                line = f"{outcome.result:8} {outcome.seconds:5.1f} s  {outcome.mutant.title}"
                progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

        outcomes = run_mutants(repository, runnable, options.jobs, on_outcome)
    return report(outcomes, time.perf_counter() - started)


def report(outcomes: Sequence[Outcome], seconds: float) -> int:
    """Print what was not noticed, and how many were; the exit code."""
    console = make_console()
    unnoticed = [one for one in outcomes if one.result != "killed"]
    if unnoticed:
        rows = [(one.mutant.title, one.result, one.mutant.why, one.what) for one in unnoticed]
        print_table(console, Table(COLUMNS, rows, "mutants that no test noticed"))
    count = Counter(one.result for one in outcomes)
    console.print(
        f"{len(outcomes)} mutants: {count['killed']} noticed, {count['survived']} survived, "
        f"{count['error']} in error, in {seconds:.0f} s"
    )
    return 2 if count["error"] else 1 if count["survived"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Plant faults in a copy of the kernels and demand that tests notice each.",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants of this file or text")
    parser.add_argument("--verbose", action="store_true", help="a line for each mutant")
    parser.add_argument(
        "--jobs",
        type=int,
        choices=range(1, MOST_JOBS + 1),
        default=min(MOST_JOBS, os.cpu_count() or 1),
        help="mutants at a time",
    )
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument("--gpu", action="store_true", default=None, help="only those of the GPU")
    gpu.add_argument("--no-gpu", action="store_false", dest="gpu", help="only the others")
    return parser


if __name__ == "__main__":
    sys.exit(main())
