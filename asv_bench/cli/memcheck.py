"""`memcheck`: the GPU's tests as they are, then under compute-sanitizer's memory checker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table

from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.output.console import make_console, print_table
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, Record, require_places
from asv_bench.process.machine import has_cuda_gpu

_SANITIZER = "compute-sanitizer"
_MOST_JOBS = 8
"""Processes by default, on a host of so many cores: each has a context on the GPU."""
_ERRORS = re.compile(r"^=+ ERROR SUMMARY: (\d+) error", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Check:
    """Tests on the GPU.

    Attributes
    ----------
    name
        What the table calls it.
    arguments
        Passed to pytest: which tests.
    is_sanitized
        Run under memcheck.
    is_uncached
        Give every tensor an allocation of its own. torch's allocator hands out parts of large
        ones, where an access beyond a tensor still lands in valid memory; graphs cannot be
        captured without it.
    """

    name: str
    arguments: tuple[str, ...]
    is_sanitized: bool = False
    is_uncached: bool = False


CHECKS = (
    Check(
        "kernels and engine",
        (
            "tests/kernels",
            "tests/engine/test_on_gpu.py",
            "tests/engine/fused/test_step_on_gpu.py",
            "tests/engine/transport/test_staging.py",
            "tests/engine/transport/test_word_changes.py",
        ),
    ),
    Check(
        "memcheck: graphs, repeats",
        (
            "tests/kernels/test_on_gpu.py",
            "tests/kernels/attention/test_ring_attention.py",
            "tests/kernels/attention/test_row.py",
            "tests/kernels/test_fused_on_gpu.py",
            "tests/engine/transport/test_word_changes.py",
        ),
        is_sanitized=True,
    ),
    Check(
        "memcheck: each tensor its own allocation",
        (
            "tests/kernels/attention/test_append.py",
            "tests/kernels/attention/test_decode.py",
            "tests/kernels/attention/test_prefill.py",
            "tests/kernels/linear/test_norm.py",
            "tests/kernels/attention/test_fused.py",
            "tests/kernels/linear/test_projections.py",
            "tests/kernels/step/test_rows.py",
            "tests/kernels/attention/test_ring_attention.py",
            "tests/kernels/attention/test_row.py",
            "tests/kernels/test_fused_on_gpu.py",
            # The overflow test's caches of 8.6 GB are too slow to watch, and are checked above, as
            # are the tests that capture graphs.
            "-k",
            "not torch- and not beyond_32 and not replayed_graph and not tiles_in_use_repeat",
        ),
        is_sanitized=True,
        is_uncached=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check came to; `memory_errors` is None where memcheck did not run."""

    name: str
    passed: int
    failed: int
    skipped: int
    memory_errors: int | None
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether tests ran, none failed, and no access was wrong."""
        return self.passed > 0 and not self.failed and not self.memory_errors

    @property
    def words(self) -> str:
        """What came out, in half a line."""
        verdict = "clean" if self.is_clean else "not clean"
        return f"{verdict}, {self.passed} passed after {self.seconds:.0f} s"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("memcheck", help="Run the GPU tests, plainly and under compute-sanitizer.")(
        memcheck
    )


def memcheck(
    only: Annotated[
        str, typer.Option("--check", help="Only the checks whose names contain this.")
    ] = "",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Processes that share a check; default: the cores, {_MOST_JOBS} at most."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where the JSON goes; default: reports/runs.")
    ] = None,
) -> None:
    """Run the checks, each a minute or more long, and write down what came out as soon as it has.

    Raises
    ------
    Refused
        Without a GPU or without compute-sanitizer, or when no check is called so.
    MeasurementFailed
        When a test failed, none ran, or memcheck found an error.
    """
    if not has_cuda_gpu():
        raise Refused("memcheck needs a GPU that torch can use, and there is none here.")
    if shutil.which(_SANITIZER) is None:
        raise Refused(f"There is no {_SANITIZER} on the PATH: it comes with the CUDA toolkit.")
    checks = [check for check in CHECKS if only in check.name]
    if not checks:
        names = ", ".join(repr(check.name) for check in CHECKS)
        raise Refused(f"No check has {only!r} in its name: there are {names}.")
    require_places(output)
    jobs = jobs or min(os.cpu_count() or 1, _MOST_JOBS)
    console = make_console()
    record = Record("memcheck", {"checks": [asdict(check) for check in checks], "jobs": jobs})
    outcomes: list[Outcome] = []
    for check in checks:
        with Progress(console, check.name, unit="tests"):
            outcomes.append(run_check(check, jobs))
        console.print(f"{check.name}: {outcomes[-1].words}", highlight=False, soft_wrap=True)
        record.results = {"checks": [asdict(outcome) for outcome in outcomes]}
        path = record.write(output)
    print_table(console, _table(outcomes))
    console.print(f"record: {path}", highlight=False, soft_wrap=True)
    unclean = [outcome.name for outcome in outcomes if not outcome.is_clean]
    if unclean:
        raise MeasurementFailed(f"not clean: {', '.join(unclean)}.")


def run_check(check: Check, jobs: int) -> Outcome:
    """Run one check; the output of processes that are not clean is shown.

    Most of a check is the host's time, so its tests are dealt out to `jobs` processes, each under a
    sanitizer of its own where the check is sanitized.
    """
    started = time.perf_counter()
    tests = _collect(check)
    if not tests:
        return Outcome(check.name, 0, 1, 0, None, time.perf_counter() - started)
    shares = [tests[first::jobs] for first in range(min(jobs, len(tests)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        outcomes = list(pool.map(partial(_run_share, check), shares))
    return total(check, outcomes, time.perf_counter() - started)


def _collect(check: Check) -> list[str]:
    """The ids of the check's tests; none, and why is shown, where pytest cannot tell them."""
    done = _run_pytest(check, ["--collect-only", *check.arguments])
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return []
    return list(takewhile(str.strip, done.stdout.splitlines()))


def _run_share(check: Check, tests: Sequence[str]) -> Outcome:
    started = time.perf_counter()
    with TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        sanitizer = [_SANITIZER, "--tool", "memcheck"] if check.is_sanitized else []
        done = _run_pytest(check, [*tests, f"--junitxml={report}"], sanitizer)
        seconds = time.perf_counter() - started
        outcome = read_outcome(check, report, done.stdout, seconds)
    if not outcome.is_clean:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return outcome


def _run_pytest(
    check: Check, arguments: Sequence[str], under: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KVTRAIL_REQUIRE": "gpu"}
    environment.pop("TRITON_INTERPRET", None)
    if check.is_uncached:
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    command = [*under, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def read_outcome(check: Check, report: Path, output: str, seconds: float) -> Outcome:
    """Count tests from pytest's JUnit report and errors from the sanitizer's last line.

    A run that left no report, or no summary of its errors, counts as one failure.
    """
    passed = failed = skipped = 0
    if report.is_file():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors")}
            skipped += int(suite.get("skipped", 0))
            failed += counts["failures"] + counts["errors"]
            passed += counts["tests"] - counts["failures"] - counts["errors"]
        passed -= skipped
    else:
        failed = 1
    memory_errors = None
    if check.is_sanitized:
        summary = _ERRORS.search(output)
        memory_errors = int(summary.group(1)) if summary else None
        failed += summary is None
    return Outcome(check.name, passed, failed, skipped, memory_errors, seconds)


def total(check: Check, outcomes: Sequence[Outcome], seconds: float) -> Outcome:
    """What the processes of one check came to together, in so many seconds."""
    errors = [outcome.memory_errors for outcome in outcomes]
    known_errors = [count for count in errors if count is not None]
    return Outcome(
        check.name,
        sum(outcome.passed for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum(known_errors) if known_errors else None,
        seconds,
    )


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("check", title="GPU tests", title_justify="left")
    for heading in ("passed", "failed", "skipped", "memory errors", "seconds"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        errors = "-" if outcome.memory_errors is None else str(outcome.memory_errors)
        counts = (outcome.passed, outcome.failed, outcome.skipped)
        table.add_row(outcome.name, *map(str, counts), errors, f"{outcome.seconds:.0f}")
    return table
