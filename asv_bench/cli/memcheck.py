"""`memcheck`: run the GPU tests, plainly and under compute-sanitizer's memory checker."""

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
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from asv_bench.cli.grouped import grouped
from asv_bench.cli.options import Outputs
from asv_bench.errors import MeasurementFailed, Refused
from asv_bench.output.progress import Progress
from asv_bench.output.record import REPOSITORY, Record
from asv_bench.output.table import Column, Table, digits
from asv_bench.process.machine import has_cuda_gpu

_SANITIZER = "compute-sanitizer"
_MOST_JOBS = 8
"""Processes by default, on a host of so many cores: each has a context on the GPU."""
_ERRORS = re.compile(r"^=+ ERROR SUMMARY: (\d+) error", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Check:
    """Tests on the GPU."""

    name: str  # what the table calls it
    arguments: tuple[str, ...]  # passed to pytest: which tests
    is_sanitized: bool = False  # run under memcheck
    # Give every tensor an allocation of its own. torch's allocator hands out parts of large
    # ones, where an access beyond a tensor still lands in valid memory; graphs cannot be
    # captured without it.
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
            "tests/kernels/linear/test_gate.py",
            "tests/kernels/linear/test_norm.py",
            "tests/kernels/attention/test_fused.py",
            "tests/kernels/attention/test_rotation.py",
            "tests/kernels/linear/test_projections.py",
            "tests/kernels/linear/test_refusals.py",
            "tests/kernels/step/test_rows.py",
            "tests/kernels/sampling/test_draw.py",
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
    """The counts of one check, or of one of its processes.

    `memory_errors` is None if memcheck did not run.
    """

    passed: int
    failed: int
    skipped: int
    memory_errors: int | None = None
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether tests ran, none failed, and no access was wrong."""
        return self.passed > 0 and not self.failed and not self.memory_errors

    def __str__(self) -> str:
        verdict = "clean" if self.is_clean else "not clean"
        return f"{verdict}, {self.passed} passed after {self.seconds:.0f} s"


COLUMNS = (
    Column("check", "check", kind="text"),
    *(Column(name, name) for name in ("passed", "failed", "skipped")),
    Column("memory_errors", "memory errors"),
    Column("seconds", "seconds", show=digits(0)),
)


@grouped
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
    *,
    outputs: Outputs,
) -> None:
    """Run the GPU tests, plainly and under compute-sanitizer.

    A check takes a minute or more; the record is written after each.
    """
    if not has_cuda_gpu():
        raise Refused("memcheck needs a GPU that torch can use, and there is none here.")
    if shutil.which(_SANITIZER) is None:
        raise Refused(f"There is no {_SANITIZER} on the PATH: it comes with the CUDA toolkit.")
    checks = [check for check in CHECKS if only in check.name]
    if not checks:
        names = ", ".join(repr(check.name) for check in CHECKS)
        raise Refused(f"No check has {only!r} in its name: there are {names}.")
    files = outputs.files()
    console = files.console
    jobs = jobs or min(os.cpu_count() or 1, _MOST_JOBS)
    record = Record("memcheck", {"checks": [asdict(check) for check in checks], "jobs": jobs})
    outcomes: dict[str, Outcome] = {}
    for check in checks:
        with Progress(console, check.name, unit="tests"):
            outcomes[check.name] = run_check(check, jobs)
        console.print(f"{check.name}: {outcomes[check.name]}")
        record.results = {
            "checks": [{"name": name, **asdict(one)} for name, one in outcomes.items()]
        }
        path = record.write(files.record)
    rows = [(name, *astuple(outcome)) for name, outcome in outcomes.items()]
    files.show(Table(COLUMNS, rows, "GPU tests"))
    console.print(f"record: {path}")
    unclean = [name for name, outcome in outcomes.items() if not outcome.is_clean]
    if unclean:
        raise MeasurementFailed(f"not clean: {', '.join(unclean)}.")


def run_check(check: Check, jobs: int) -> Outcome:
    """Run the tests of a check in `jobs` processes, and show the output of those not clean."""
    started = time.perf_counter()
    tests = _collect(check)
    shares = [tests[first::jobs] for first in range(min(jobs, len(tests)))]
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(partial(_run_share, check), shares))
    return replace(total(outcomes), seconds=time.perf_counter() - started)


def _collect(check: Check) -> list[str]:
    """The ids of the check's tests; none if pytest fails, whose output is shown."""
    done = _run_pytest(check, ["--collect-only", *check.arguments])
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return []
    return list(takewhile(str.strip, done.stdout.splitlines()))


def _run_share(check: Check, tests: Sequence[str]) -> Outcome:
    with TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        sanitizer = [_SANITIZER, "--tool", "memcheck"] if check.is_sanitized else []
        done = _run_pytest(check, [*tests, f"--junitxml={report}"], sanitizer)
        outcome = read_outcome(check, report, done.stdout)
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
    command = [*under, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def read_outcome(check: Check, report: Path, output: str) -> Outcome:
    """Count tests from pytest's JUnit report and errors from the sanitizer's last line.

    A run that left no report, or no summary of its errors, counts as one failure.
    """
    if not report.is_file():
        return Outcome(0, 1, 0)
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    outcome = Outcome(tests - failed - skipped, failed, skipped)
    if not check.is_sanitized:
        return outcome
    summary = _ERRORS.search(output)
    if summary is None:
        return replace(outcome, failed=failed + 1)
    return replace(outcome, memory_errors=int(summary.group(1)))


def total(outcomes: Sequence[Outcome]) -> Outcome:
    """The sums over the processes of one check; no process at all counts as a failure."""
    errors = [one.memory_errors for one in outcomes if one.memory_errors is not None]
    passed, failed, skipped = (
        sum(getattr(one, name) for one in outcomes) for name in ("passed", "failed", "skipped")
    )
    return Outcome(passed, failed if outcomes else 1, skipped, sum(errors) if errors else None)
